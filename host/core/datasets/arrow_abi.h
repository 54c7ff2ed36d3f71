/* The interface between libcoupler and libcoupler_arrow, the only library that links Apache Arrow:
 * C functions and Arrow's C data interface, so that neither side depends on the other's C++.
 *
 * Every function that returns char* returns NULL, or a sentence that says what failed, which the
 * caller frees with free(). Functions of different files may run at the same time; those of one
 * file, one at a time. Nothing throws. */
#pragma once

#include <stdint.h>

/* https://arrow.apache.org/docs/format/CDataInterface.html, whose specification asks to repeat
 * these definitions under this guard. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

extern "C" {

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

}  // extern "C"

#endif  // ARROW_C_DATA_INTERFACE

#define COUPLER_ARROW_VERSION 1
#define COUPLER_ARROW_ENTRY "coupler_arrow_reader"

extern "C" {

struct CouplerArrowReader {
  uint32_t version; /* COUPLER_ARROW_VERSION */

  /* A Parquet file, or an Arrow IPC file or stream, in memory, which has to stay until all arrays
   * that were read are released and the file is closed. */
  char* (*open)(const uint8_t* bytes, uint64_t size, int32_t is_parquet, void** file);
  void (*close)(void* file);

  /* The columns, as the fields of a struct. The caller releases it. */
  char* (*schema)(void* file, struct ArrowSchema* schema);

  /* Row groups of Parquet, record batches of Arrow; and the rows of one. */
  int64_t (*chunks)(void* file);
  int64_t (*chunk_rows)(void* file, int64_t chunk);

  /* Reads `count` columns of a chunk, by position, as a struct, and checks what it has read. The
   * caller releases it. own_bytes: the memory that it takes in addition to the file's. */
  char* (*read)(void* file, int64_t chunk, const int32_t* columns, int32_t count,
                struct ArrowArray* array, uint64_t* own_bytes);
};

/* The type of the entry function, whose name is COUPLER_ARROW_ENTRY. */
typedef const struct CouplerArrowReader* (*CouplerArrowEntry)(void);

}  // extern "C"
