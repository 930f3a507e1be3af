// What the public headers declare, as text: for tests that a table of theirs leaves nothing out.
#ifndef FWDMETA_TESTS_PUBLIC_HEADER_H_
#define FWDMETA_TESTS_PUBLIC_HEADER_H_

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fwdmeta_test {

// Both headers without their comments and with single spaces.
inline std::string PublicHeaders() {
  std::string text;
  for (const char* name : {"/capi/fwdmeta.h", "/capi/fwdmeta_context.h"}) {
    std::ifstream file(std::string(FWDMETA_SOURCE_DIR) + name);
    text.append((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  std::string code;
  for (size_t at = 0; at < text.size();) {
    const size_t comment = text.find("/*", at);
    code.append(text, at, comment - at);
    if (comment == std::string::npos) break;
    at = text.find("*/", comment) + 2;
  }
  return std::regex_replace(code, std::regex("\\s+"), " ");
}

struct PublicFunction {
  std::string name;
  std::vector<std::string> parameters;  // "const fwdmeta_config_t *config"
};

inline std::vector<PublicFunction> PublicFunctions() {
  const std::string code = PublicHeaders();
  const std::regex declaration("FWDMETA_API [a-z0-9_ *]*?(fwdmeta_\\w+)\\(([^)]*)\\);");
  std::vector<PublicFunction> functions;
  for (std::sregex_iterator it(code.begin(), code.end(), declaration), end; it != end; ++it) {
    PublicFunction function{(*it)[1], {}};
    const std::string list = (*it)[2];
    for (size_t at = 0; at < list.size();) {
      const size_t comma = std::min(list.find(", ", at), list.size());
      function.parameters.push_back(list.substr(at, comma - at));
      at = comma + 2;
    }
    functions.push_back(function);
  }
  return functions;
}

// What the one has and the other has not, for comparisons that are too long to be shown whole.
template <class Names>
std::string Difference(const Names& declared, const Names& in_table) {
  std::vector<std::string> missing, unknown;
  std::set_difference(declared.begin(), declared.end(), in_table.begin(), in_table.end(), std::back_inserter(missing));
  std::set_difference(in_table.begin(), in_table.end(), declared.begin(), declared.end(), std::back_inserter(unknown));
  std::string text;
  for (const std::string& name : missing) text += "not in the table: " + name + "\n";
  for (const std::string& name : unknown) text += "not declared: " + name + "\n";
  return text;
}

// "name type" of each parameter that `pattern` matches, whose first group is the type.
inline std::multiset<std::string> ParametersLike(const std::string& pattern) {
  std::multiset<std::string> found;
  const std::regex form(pattern);
  std::smatch match;
  for (const PublicFunction& function : PublicFunctions()) {
    for (const std::string& parameter : function.parameters) {
      if (std::regex_match(parameter, match, form)) found.insert(function.name + " " + match[1].str());
    }
  }
  return found;
}

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_PUBLIC_HEADER_H_
