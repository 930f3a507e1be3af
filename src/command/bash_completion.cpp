#include <map>

#include "usage.h"

namespace fwdmeta::command {

namespace {

std::string joined(const std::vector<std::string>& words, const char* separator) {
  return CLI::detail::join(words, separator);
}

std::vector<std::string> option_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : shown_options(app)) {
    for (const std::string& name : spellings(*option)) words.push_back(name);
  }
  return words;
}

// `command option` as bash patterns, by what completes the option's value.
struct ValuePatterns {
  std::map<std::string, std::vector<std::string>> by_choices;
  std::vector<std::string> free;

  void add(const CLI::App& command) {
    for (const CLI::Option* option : shown_options(command)) {
      if (!takes_value(*option)) continue;
      const std::string words = joined(choices(*option), " ");
      for (const std::string& name : spellings(*option)) {
        (words.empty() ? free : by_choices[words]).push_back("'" + command.get_name() + " " + name + "'");
      }
    }
  }
};

constexpr const char* kHead =
    R"(  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' i
  # --format=json is three words here, since bash breaks words at the "=".
  if [[ $word == = ]]; then
    word=''
  elif [[ $before == = ]] && ((COMP_CWORD > 1)); then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }
  done
  COMPREPLY=()
)";

constexpr const char* kTail = R"(  COMPREPLY=($(compgen -W "$words" -- "$word"))
  compopt +o default 2>/dev/null
)";

}  // namespace

std::string bash_completion(const CLI::App& app) {
  const std::string& name = app.get_name();
  ValuePatterns values;
  std::vector<std::string> first_words;
  std::string options;
  for (const CLI::App* command : shown_subcommands(app)) {
    values.add(*command);
    first_words.push_back(command->get_name());
    options += "        " + command->get_name() + ") words='" + joined(option_words(*command), " ") + "' ;;\n";
  }
  for (const std::string& word : option_words(app)) first_words.push_back(word);

  std::string script = "# Completion for bash, as `" + name + " completion bash` prints it.\n";
  script += "_" + name + "() {\n" + kHead + "  case \"$command $before\" in\n";
  for (const auto& [words, patterns] : values.by_choices) {
    script += "    " + joined(patterns, " | ") + ") words='" + words + "' ;;\n";
  }
  if (!values.free.empty()) {
    script += "    " + joined(values.free, " | ") + ")\n      compopt +o default 2>/dev/null\n      return ;;\n";
  }
  script += "    ' '*) words='" + joined(first_words, " ") + "' ;;\n";
  script += "    *)\n      [[ $word == -* ]] || return # a file, which readline completes itself\n";
  script += "      case $command in\n" + options + "      esac ;;\n  esac\n";
  return script + kTail + "}\ncomplete -o default -F _" + name + " " + name + "\n";
}

}  // namespace fwdmeta::command
