#include <cctype>

#include "usage.h"

namespace fwdmeta::command {

namespace {

// Text as troff prints it: no character is a command, and a hyphen is the one that is typed.
std::string escaped(const std::string& text) {
  std::string out;
  bool at_line_start = true;
  for (const char c : text) {
    if (at_line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    at_line_start = c == '\n';
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

// "json|table" for an option of few values, else the name of its type.
std::string value_of(const CLI::Option& option) {
  const std::vector<std::string> values = choices(option);
  return values.empty() ? italic(option.get_type_name()) : bold(CLI::detail::join(values, "|"));
}

std::string option_entry(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : spellings(option)) names += (names.empty() ? "" : ", ") + bold(name);
  if (takes_value(option)) names += " " + value_of(option);
  std::string text = escaped(option.get_description());
  if (!option.get_default_str().empty()) text += " [" + escaped(option.get_default_str()) + "]";
  return ".TP\n" + names + "\n" + text + "\n";
}

std::string option_entries(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : shown_options(app)) text += option_entry(*option);
  return text;
}

std::string command_section(const std::string& name, const CLI::App& command) {
  std::string usage = bold(name + " " + command.get_name()) + " [" + italic("OPTIONS") + "]";
  std::string files;
  for (const CLI::Option* file : positionals(command)) {
    usage += " " + italic(file->get_name(true));
    files += ".TP\n" + italic(file->get_name(true)) + "\n" + escaped(file->get_description()) + "\n";
  }
  return ".SS " + escaped(command.get_name()) + "\n" + usage + "\n.PP\n" + escaped(command.get_description()) + "\n" +
         files + option_entries(command);
}

constexpr const char* kAfterOptions = R"(.SH EXIT STATUS
.TP
.B 0
The answer is on standard output.
.TP
.B 1
The library answered with an error: its code and message are the answer on standard output, and the message is on
standard error as well.
.TP
.B 2
Wrong usage, or a file that cannot be read: the message is on standard error, and nothing on standard output.
.SH ENVIRONMENT
.TP
.B FWDMETA_LOG_LEVEL
.BR trace ,\  debug ,\  info ,\  warn ,\  error \ or\  off :
which records the library writes to standard error [warn]
)";

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  const std::string& name = app.get_name();
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string page = ".TH " + upper + " 1 \"\" \"" + escaped(version) + "\" \"User Commands\"\n";
  page += ".SH NAME\n" + escaped(name) + " \\- the forward metadata of LLM serving steps\n";
  page +=
      ".SH SYNOPSIS\n" + bold(name) + " " + italic("COMMAND") + " [" + italic("OPTIONS") + "] " + italic("FILE") + "\n";
  page += ".SH DESCRIPTION\n" + escaped(app.get_description()) + "\n";
  page += "A file is JSON or, for a trace, CSV; the answer is JSON, or a table where standard output is a terminal.\n";
  page += option_entries(app);
  page += ".SH COMMANDS\n";
  for (const CLI::App* command : shown_subcommands(app)) page += command_section(name, *command);
  return page + kAfterOptions;
}

}  // namespace fwdmeta::command
