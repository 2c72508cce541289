#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tool/surroundings/arguments.hpp"

namespace spc::tool {

/// One option: used by parser, help, completion and the test of the manual page.
struct OptionRow {
  const char* names;     ///< `--json` or `-y,--yes`
  const char* argument;  ///< nullptr: none
  const char* help;
};

/// One command of scontainer.
struct Command {
  const char* name;
  const char* words;  ///< words after the options, for the help: `IMAGE [COMMAND...]`
  const char* summary;
  const char* more;  ///< end of its help: explanation and examples
  std::span<const OptionRow> options;
  unsigned least_words;
  unsigned most_words;
  bool takes_rest;  ///< everything after the words is a command and passed on unchanged
  int failure;      ///< exit status of its own failures
  Result<int> (*run)(const Arguments&);
};

/// All commands, in the order of the help.
std::span<const Command> command_table();

/// Parses the command line, runs the command and reports its error; returns the exit status.
int run_command_line(int argc, char** argv);

/// Help texts: of the program, and of one command.
std::string program_help();
std::string command_help(const Command& command);

Result<int> run_pull(const Arguments& arguments);
Result<int> run_images(const Arguments& arguments);
Result<int> run_catalogue(const Arguments& arguments);
Result<int> run_inspect(const Arguments& arguments);
Result<int> run_rm(const Arguments& arguments);
Result<int> run_gc(const Arguments& arguments);
Result<int> run_containers(const Arguments& arguments);
Result<int> run_run(const Arguments& arguments);
Result<int> run_shell(const Arguments& arguments);
Result<int> run_exec(const Arguments& arguments);
Result<int> run_stop(const Arguments& arguments);
Result<int> run_attach(const Arguments& arguments);
Result<int> run_import(const Arguments& arguments);
Result<int> run_export(const Arguments& arguments);
Result<int> run_push(const Arguments& arguments);
Result<int> run_login(const Arguments& arguments);
Result<int> run_logout(const Arguments& arguments);
Result<int> run_info(const Arguments& arguments);
Result<int> run_version(const Arguments& arguments);
Result<int> run_doctor(const Arguments& arguments);
Result<int> run_audit(const Arguments& arguments);
Result<int> run_metrics(const Arguments& arguments);
Result<int> run_cdi(const Arguments& arguments);
Result<int> run_completion(const Arguments& arguments);

}  // namespace spc::tool
