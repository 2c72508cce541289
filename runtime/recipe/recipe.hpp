#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

// The format of Dockerfiles is that of BuildKit's reference, docs.docker.com/reference/dockerfile.

// --- variables ---

/// Variables of a recipe: ARG and ENV.
using Variables = std::map<std::string, std::string, std::less<>>;

/// Replaces $NAME, ${NAME} and the forms :-, -, :+, +, :?, ?, #, ##, %, %%, / and // of ${…} in
/// `text`. Removes quotes and escapes as a shell does, and does not split the result. `escape`:
/// the recipe's escape character.
Result<std::string> expand(std::string_view text, const Variables& variables, char escape = '\\');

/// Does the same and splits the result at blanks outside of quotes and variables.
Result<std::vector<std::string>> expand_words(std::string_view text, const Variables& variables,
                                              char escape = '\\');

/// Returns whether `text` matches the pattern of a shell with *, ? and [...]; * matches '/'.
bool matches_glob(std::string_view pattern, std::string_view text);

// --- Dockerfile ---

/// A here-document of an instruction.
struct HereDocument {
  std::string name;
  std::string text;
  bool expands = true;  ///< false: its name was quoted
};

/// One instruction of a recipe.
struct Instruction {
  std::string name;                                        ///< in upper case
  unsigned line = 0;                                       ///< of its first line, from 1
  std::vector<std::pair<std::string, std::string>> flags;  ///< without dashes: from=build
  std::string text;               ///< the rest, lines joined, without the markers' bodies
  std::vector<std::string> list;  ///< the JSON form, if `is_list`
  bool is_list = false;
  std::vector<HereDocument> documents;

  /// Returns the flag's last value, or empty.
  [[nodiscard]] std::string flag(std::string_view name) const;
};

/// A parsed recipe.
struct Dockerfile {
  std::vector<Instruction> instructions;
  char escape = '\\';
};

/// Parses a Dockerfile. `name` begins the messages: `NAME:LINE: …`. Checks instruction names and
/// flags, not their values.
Result<Dockerfile> parse_dockerfile(std::string_view text, const std::string& name);

/// Returns the pairs of ENV, LABEL or ARG: `A=1 B="2 3"`, or the old form `A 1 2`. Values are not
/// expanded. A name without a value has no '=' in the text: only ARG permits it.
struct Assignment {
  std::string name, value;
  bool has_value = true;
};
Result<std::vector<Assignment>> parse_assignments(const Instruction& instruction, char escape);

// --- definition file ---

/// Returns whether the text is a definition file of Apptainer: it begins with `Bootstrap:`.
bool is_definition(std::string_view text);

/// Parses a definition file (apptainer.org/docs/user, "Definition Files") and translates it to
/// instructions: %files to COPY with the flag `as=cp`, %post to RUN, the other sections to files
/// below /.singularity.d and to settings. The instruction APPTAINER stands for the file with the
/// environment of the base image. `arguments`: values of {{ NAME }}.
Result<Dockerfile> parse_definition(std::string_view text, const std::string& name,
                                    const Variables& arguments);

// --- .dockerignore ---

/// The patterns of a .dockerignore file.
class IgnoreFile {
 public:
  static IgnoreFile parse(std::string_view text);
  /// Returns whether the file is left out of the context. `path`: relative to the context.
  [[nodiscard]] bool matches(std::string_view path) const;
  /// Returns whether a pattern with ! may bring back a file below a directory that is left out.
  [[nodiscard]] bool has_exceptions() const { return has_exceptions_; }

 private:
  struct Pattern {
    std::string text;
    bool brings_back = false;
  };
  std::vector<Pattern> patterns_;
  bool has_exceptions_ = false;
};

/// Returns whether `path` or a directory above it matches a pattern of a context path, in which *
/// does not match '/' and ** matches any number of directories.
bool matches_path(std::string_view pattern, std::string_view path);

}  // namespace spc
