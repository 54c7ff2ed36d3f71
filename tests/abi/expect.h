/* EXPECT(condition): counts and prints failures, for the plain C tests of this
 * folder. One thread. */
#ifndef COUPLER_TESTS_ABI_EXPECT_H_
#define COUPLER_TESTS_ABI_EXPECT_H_

#include <stdio.h>

static int expect_failures;

#define EXPECT(condition)                                            \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: FAILED: %s\n", __FILE__, __LINE__, #condition); \
      ++expect_failures;                                             \
    }                                                                \
  } while (0)

#endif /* COUPLER_TESTS_ABI_EXPECT_H_ */
