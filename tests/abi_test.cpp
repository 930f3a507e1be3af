// The library as a file: layout of the public structs, exported symbols, needed libraries, loading by dlopen.
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fwdmeta.h"
#include "loaded_library.h"
#include "public_header.h"
#include "two_slots.h"

extern "C" int fwdmeta_test_header_as_c(void);
int fwdmeta_test_header_as_cpp();

// B88: the host program exports functions of the library's names. None may be called in their stead.
#define FWDMETA_TEST_EXPORT extern "C" __attribute__((visibility("default"), used))
FWDMETA_TEST_EXPORT int32_t fwdmeta_version(void) { std::abort(); }
FWDMETA_TEST_EXPORT const char* fwdmeta_status_name(fwdmeta_status_t) { std::abort(); }
FWDMETA_TEST_EXPORT const char* fwdmeta_field_name(fwdmeta_field_t) { std::abort(); }
FWDMETA_TEST_EXPORT const char* fwdmeta_last_error(void) { std::abort(); }
FWDMETA_TEST_EXPORT fwdmeta_status_t fwdmeta_builder_destroy(fwdmeta_builder_t) { std::abort(); }
FWDMETA_TEST_EXPORT fwdmeta_status_t fwdmeta_meta_get_field(fwdmeta_meta_t, fwdmeta_field_t, int32_t,
                                                            fwdmeta_tensor_t*) {
  std::abort();
}
FWDMETA_TEST_EXPORT fwdmeta_status_t fwdmeta_counts_wait(fwdmeta_builder_t, int64_t, fwdmeta_wait_flags_t, int64_t,
                                                         fwdmeta_counts_t*) {
  std::abort();
}

namespace fwdmeta_test {
namespace {

TEST(Abi, HeadersInStrictCAndCpp) {
  EXPECT_TRUE(fwdmeta_test_header_as_c());
  EXPECT_TRUE(fwdmeta_test_header_as_cpp());
}

TEST(Abi, LayoutIsTheGolden) {
#define STRUCT(name, size) EXPECT_EQ(size##u, sizeof(name)) << #name;
#define FIELD(type, name, offset, size)                          \
  EXPECT_EQ(offset##u, offsetof(type, name)) << #type "." #name; \
  EXPECT_EQ(size##u, sizeof(type::name)) << #type "." #name;
#define FUNCTION(name)
#define TYPE(name, integer) EXPECT_TRUE((std::is_same<name, integer>::value)) << #name;
#define CONSTANT(name, value) EXPECT_EQ(value, name) << #name;
#include "abi_golden.inc"
#undef STRUCT
#undef FIELD
#undef FUNCTION
#undef TYPE
#undef CONSTANT
}

// A later version's field may not take the place of bytes that an older caller's struct_size counts and leaves unset.
TEST(Abi, NoStructHasPadding) {
  std::map<std::string, size_t> sizes, ends;
#define STRUCT(name, size) sizes[#name] = size;
#define FIELD(type, name, offset, size)                        \
  EXPECT_EQ(ends[#type], offset##u) << #type " before " #name; \
  ends[#type] = offset + size;
#define FUNCTION(name)
#define TYPE(name, integer)
#define CONSTANT(name, value)
#include "abi_golden.inc"
#undef STRUCT
#undef FIELD
#undef FUNCTION
#undef TYPE
#undef CONSTANT
  for (const auto& [name, size] : sizes) EXPECT_EQ(size, ends[name]) << name;
}

// The names of one kind in the golden file.
std::set<std::string> GoldenNames(const std::string& kind) {
  static const std::pair<const char*, const char*> names[] = {
#define STRUCT(name, size) {"STRUCT", #name},
#define FIELD(type, name, offset, size)
#define FUNCTION(name) {"FUNCTION", #name},
#define TYPE(name, integer) {"TYPE", #name},
#define CONSTANT(name, value) {"CONSTANT", #name},
#include "abi_golden.inc"
#undef STRUCT
#undef FIELD
#undef FUNCTION
#undef TYPE
#undef CONSTANT
  };
  std::set<std::string> found;
  for (const auto& [is, name] : names) {
    if (is == kind) found.insert(name);
  }
  return found;
}

const std::set<std::string>& Functions() {
  static const std::set<std::string> functions = GoldenNames("FUNCTION");
  return functions;
}

// The numbers, names and structs that an engine is compiled with are those of the golden file, none more: what a change
// adds is added there, and stays.
TEST(Abi, TheGoldenHasAllThatTheHeadersDeclare) {
  const std::string code = PublicHeaders();
  const auto declared = [&code](const std::string& text, const char* pattern) {
    std::set<std::string> names;
    const std::regex form(pattern);
    for (std::sregex_iterator it(text.begin(), text.end(), form), end; it != end; ++it) names.insert((*it)[1]);
    return names;
  };
  EXPECT_EQ("", Difference(declared(code, "\\} (fwdmeta_\\w+_t);"), GoldenNames("STRUCT")));
  EXPECT_EQ("", Difference(declared(code, "typedef u?int[0-9]+_t (fwdmeta_\\w+);"), GoldenNames("TYPE")));
  std::set<std::string> functions;
  for (const PublicFunction& function : PublicFunctions()) functions.insert(function.name);
  EXPECT_EQ("", Difference(functions, GoldenNames("FUNCTION")));
  std::set<std::string> constants = declared(code, "#define (FWDMETA_(?:MAX_\\w+|ALL_LAYERS)) ");
  const std::regex enumeration("\\benum \\{([^}]*)\\}");
  for (std::sregex_iterator it(code.begin(), code.end(), enumeration), end; it != end; ++it) {
    constants.merge(declared((*it)[1], "(FWDMETA_\\w+) ="));
  }
  EXPECT_EQ("", Difference(constants, GoldenNames("CONSTANT")));
}

// What the dynamic linker sees of a 64-bit ELF file.
struct Elf {
  bool parsed = false;
  std::set<std::string> exported, absolute, unique, needed;
  std::string soname;
};

Elf ReadElf(const std::string& path) {
  Elf elf;
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < sizeof(Elf64_Ehdr) || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0 ||
      bytes[EI_CLASS] != ELFCLASS64) {
    return elf;
  }
  const auto at = [&bytes](size_t offset) { return bytes.data() + offset; };
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(at(0));
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(at(header->e_shoff));
  for (int i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr& section = sections[i];
    if (section.sh_type != SHT_DYNSYM && section.sh_type != SHT_DYNAMIC) continue;
    const char* strings = at(sections[section.sh_link].sh_offset);
    if (section.sh_type == SHT_DYNSYM) {
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(at(section.sh_offset));
      for (size_t s = 1; s < section.sh_size / sizeof(Elf64_Sym); ++s) {
        const Elf64_Sym& symbol = symbols[s];
        const std::string name = strings + symbol.st_name;
        if (ELF64_ST_BIND(symbol.st_info) == STB_GNU_UNIQUE) elf.unique.insert(name);
        if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
        (symbol.st_shndx == SHN_ABS ? elf.absolute : elf.exported).insert(name);
      }
      elf.parsed = true;
    } else {
      const auto* entries = reinterpret_cast<const Elf64_Dyn*>(at(section.sh_offset));
      for (size_t d = 0; d < section.sh_size / sizeof(Elf64_Dyn) && entries[d].d_tag != DT_NULL; ++d) {
        if (entries[d].d_tag == DT_NEEDED) elf.needed.insert(strings + entries[d].d_un.d_val);
        if (entries[d].d_tag == DT_SONAME) elf.soname = strings + entries[d].d_un.d_val;
      }
    }
  }
  return elf;
}

TEST(Abi, ExportsThePublicFunctionsAlone) {
  const Elf elf = ReadElf(FWDMETA_LIBRARY);
  ASSERT_TRUE(elf.parsed) << FWDMETA_LIBRARY << " is no 64-bit ELF file";
  EXPECT_EQ("", Difference(Functions(), elf.exported));
  EXPECT_EQ(std::set<std::string>{"FWDMETA_1"}, elf.absolute) << "the name of the symbols' version";
  EXPECT_TRUE(elf.unique.empty()) << *elf.unique.begin() << " would be shared by two copies of the library";
}

TEST(Abi, NeedsTheSystemsLibrariesAlone) {
  const Elf elf = ReadElf(FWDMETA_LIBRARY);
  ASSERT_TRUE(elf.parsed) << FWDMETA_LIBRARY << " is no 64-bit ELF file";
  EXPECT_EQ("libfwdmeta.so." + std::to_string(FWDMETA_VERSION_MAJOR), elf.soname);
  for (const std::string& name : elf.needed) {
    if (name.compare(0, 7, "libasan") == 0 || name.compare(0, 8, "libubsan") == 0 ||
        name.compare(0, 7, "libtsan") == 0) {
      GTEST_SKIP() << "a sanitizer's build needs " << name;
    }
  }
  for (const std::string& name : elf.needed) {
    const std::string base = name.substr(0, name.find(".so"));
    EXPECT_TRUE(base == "libc" || base == "libm" || base == "libstdc++" || base.compare(0, 8, "ld-linux") == 0) << name;
  }
}

// Builds two slots on the host backend through `library` and checks what comes back.
void BuildThrough(const Loaded& library) {
  ASSERT_NE(nullptr, library.handle());
  EXPECT_EQ(FWDMETA_VERSION, CALL(library, fwdmeta_version)());
  EXPECT_STREQ("OK", CALL(library, fwdmeta_status_name)(FWDMETA_OK));
  EXPECT_STREQ("counts", CALL(library, fwdmeta_field_name)(FWDMETA_FIELD_COUNTS));
  fwdmeta_test::TwoSlots two;
  fwdmeta_builder_t builder = 0;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_builder_create)(&two.config, &builder));
  fwdmeta_meta_t meta = 0;
  int64_t step = 0;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_build)(builder, &two.batch, &meta, &step));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_counts_wait)(builder, step, FWDMETA_WAIT_FINAL, -1, &counts));
  EXPECT_EQ(6, counts.num_tokens);
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  ASSERT_EQ(FWDMETA_OK, CALL(library, fwdmeta_meta_get)(meta, "position_ids", &tensor));
  const auto* positions = static_cast<const int64_t*>(tensor.data);
  EXPECT_EQ((std::vector<int64_t>{9, 10, 0, 1, 2, 3, 0, 0}), std::vector<int64_t>(positions, positions + 8));
  size_t dumped = 0;
  const auto write = [](const char*, size_t size, void* user) -> int32_t {
    *static_cast<size_t*>(user) += size;
    return 0;
  };
  EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_meta_dump)(meta, FWDMETA_DUMP_JSON, write, &dumped));
  EXPECT_GT(dumped, 1000u);
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, CALL(library, fwdmeta_builder_destroy)(meta));
  EXPECT_STRNE("", CALL(library, fwdmeta_last_error)());
  EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_meta_destroy)(meta));
  EXPECT_EQ(FWDMETA_OK, CALL(library, fwdmeta_builder_destroy)(builder));
}

TEST(Abi, LoadsByItself) {
  for (int flags : {RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL}) {
    const Loaded library(FWDMETA_LIBRARY, flags);
    ASSERT_NE(nullptr, library.handle());
    for (const std::string& name : Functions()) EXPECT_NE(nullptr, dlsym(library.handle(), name.c_str())) << name;
    BuildThrough(library);
  }
}

// B88 (PaddleNLP#5715): two copies in one process do not see each other.
TEST(Abi, B88_TwoCopiesInOneProcess) {
  const Loaded first(FWDMETA_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  char directory[] = "/tmp/fwdmeta_abi_XXXXXX";
  ASSERT_NE(nullptr, mkdtemp(directory));
  const std::string copy = std::string(directory) + "/libfwdmeta_copy.so";
  {
    std::ifstream from(FWDMETA_LIBRARY, std::ios::binary);
    std::ofstream(copy, std::ios::binary) << from.rdbuf();
  }
  const Loaded second(copy, RTLD_NOW | RTLD_GLOBAL);
  unlink(copy.c_str());
  rmdir(directory);
  ASSERT_NE(nullptr, second.handle());
  for (const std::string& name : Functions()) {
    EXPECT_NE(dlsym(first.handle(), name.c_str()), dlsym(second.handle(), name.c_str())) << name;
  }
  BuildThrough(first);
  BuildThrough(second);
  // A message of one is none of the other.
  EXPECT_EQ(FWDMETA_INVALID_ARGUMENT, CALL(first, fwdmeta_builder_create)(nullptr, nullptr));
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, CALL(second, fwdmeta_builder_destroy)(12345));
  EXPECT_STRNE(CALL(first, fwdmeta_last_error)(), CALL(second, fwdmeta_last_error)());
}

}  // namespace
}  // namespace fwdmeta_test
