// The library as a file, by the addresses of its functions: for tests that link nothing of it.
#ifndef FWDMETA_TESTS_LOADED_LIBRARY_H_
#define FWDMETA_TESTS_LOADED_LIBRARY_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace fwdmeta_test {

class Loaded {
 public:
  Loaded(const std::string& path, int flags) : handle_(dlopen(path.c_str(), flags)) {
    EXPECT_NE(nullptr, handle_) << dlerror();
  }
  // Stays loaded until it is closed.
  void Close() { EXPECT_EQ(0, dlclose(handle_)) << dlerror(); }
  template <typename F>
  F Get(const char* name) const {
    return reinterpret_cast<F>(dlsym(handle_, name));
  }
  void* handle() const { return handle_; }

 private:
  void* handle_;
};
#define CALL(library, function) (library).Get<decltype(&(function))>(#function)

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_LOADED_LIBRARY_H_
