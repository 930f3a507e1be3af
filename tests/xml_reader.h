// Reads XML without a document type: elements, attributes, text, the five named entities. Anything else is an error.
#ifndef FWDMETA_TESTS_XML_READER_H_
#define FWDMETA_TESTS_XML_READER_H_

#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace fwdmeta_test {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of the element itself
  std::vector<Element> children;

  bool has(const std::string& attribute) const { return attributes.count(attribute) != 0; }
  double number(const std::string& attribute) const { return has(attribute) ? std::stod(attributes.at(attribute)) : 0; }
};

class XmlReader {
 public:
  // Throws std::runtime_error where the text is not well-formed.
  static Element read(const std::string& text) {
    XmlReader reader(text);
    Element root = reader.element();
    reader.spaces();
    if (reader.at_ != text.size()) reader.fail("text behind the root element");
    return root;
  }

 private:
  explicit XmlReader(const std::string& text) : text_(text) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(what + " at: " + text_.substr(at_, 60));
  }
  bool next(const std::string& token) const { return text_.compare(at_, token.size(), token) == 0; }
  void take(const std::string& token) {
    if (!next(token)) fail("expected \"" + token + "\"");
    at_ += token.size();
  }
  bool spaces() {
    const size_t begin = at_;
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ > begin;
  }
  std::string name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' ||
                                  text_[at_] == '_' || text_[at_] == ':')) {
      ++at_;
    }
    if (at_ == begin || !std::isalpha(static_cast<unsigned char>(text_[begin]))) fail("expected a name");
    return text_.substr(begin, at_ - begin);
  }
  // One character of text, or what an entity stands for.
  std::string character() {
    if (at_ >= text_.size()) fail("the text ends");
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '<' || (c < 0x20 && c != '\n' && c != '\t')) fail("a character that has to be escaped");
    if (c != '&') return std::string(1, text_[at_++]);
    for (const auto& [entity, meaning] : {std::pair("&amp;", "&"), std::pair("&lt;", "<"), std::pair("&gt;", ">"),
                                          std::pair("&quot;", "\""), std::pair("&apos;", "'")}) {
      if (!next(entity)) continue;
      take(entity);
      return meaning;
    }
    fail("an unknown entity");
  }

  Element element() {
    Element element;
    take("<");
    element.name = name();
    while (true) {
      const bool apart = spaces();
      if (next("/>")) {
        take("/>");
        return element;
      }
      if (next(">")) break;
      if (!apart) fail("no space before an attribute");
      const std::string attribute = name();
      take("=\"");
      std::string value;
      while (!next("\"")) value += character();
      take("\"");
      if (!element.attributes.emplace(attribute, value).second) fail(attribute + " stands twice");
    }
    take(">");
    while (!next("</")) {
      if (next("<")) {
        element.children.push_back(this->element());
      } else {
        element.text += character();
      }
    }
    take("</" + element.name + ">");
    return element;
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_XML_READER_H_
