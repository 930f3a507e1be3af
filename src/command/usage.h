#ifndef FWDMETA_COMMAND_USAGE_H
#define FWDMETA_COMMAND_USAGE_H

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fwdmeta::command {

// Subcommands and options as --help shows them, without those of the empty group, which is hidden.
std::vector<const CLI::App*> shown_subcommands(const CLI::App& app);
std::vector<const CLI::Option*> shown_options(const CLI::App& app);
std::vector<const CLI::Option*> positionals(const CLI::App& app);

// "-h" and "--help".
std::vector<std::string> spellings(const CLI::Option& option);

bool takes_value(const CLI::Option& option);

// The values that an option is limited to; none for one that takes any text or number.
std::vector<std::string> choices(const CLI::Option& option);

// A script for bash that completes subcommands, options and their values.
std::string bash_completion(const CLI::App& app);

// A manual page as troff source for the man macros. `version` is the name and version, as --version prints them.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace fwdmeta::command

#endif
