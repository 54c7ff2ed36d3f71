// Replaces a header that libgloo's own pair.h and context.h include but Debian's libgloo-dev lacks.
// Declares what they need: three smart-pointer wrappers with the names and the layout that the
// library was compiled with (one std::shared_ptr or std::weak_ptr each). Benchmarks do not use them
// directly; they are members of classes that one benchmark uses.
// Used only if the real header is missing (see CMakeLists.txt).
#pragma once

#include <memory>

namespace gloo {

// Keeps the object it refers to from being destroyed while it exists.
template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> pointer_;
};

// Refers to an object that may have been destroyed.
template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> pointer_;
};

// The object's reference to itself, from which the others are made.
template <typename T>
class ShareableNonOwningPtr final {
 public:
  explicit operator WeakNonOwningPtr<T>() const { return {}; }

 private:
  std::shared_ptr<T> pointer_;
};

static_assert(sizeof(NonOwningPtr<int>) == sizeof(std::shared_ptr<int>) &&
              sizeof(WeakNonOwningPtr<int>) == sizeof(std::weak_ptr<int>));

}  // namespace gloo
