// A Dockerfile and a .dockerignore of a user or of a repository.

#include "lib/property.hpp"
#include "recipe/recipe.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(recipe) {
  const std::string_view text = text_of(data, size);
  const Variables known{{"A", "a/b.c"}, {"B", ""}};
  const auto file = parse_dockerfile(text, "Dockerfile");
  if (!file) {
    must_be_readable(file.error());
  } else {
    must(!file->instructions.empty(), "a recipe has an instruction");
    unsigned line = 0;
    for (const Instruction& one : file->instructions) {
      must(one.line > line, "instructions are in order");
      line = one.line;
      must(!one.text.empty() && one.text.find('\n') == std::string::npos,
           "an instruction is one line");
      if (const auto words = expand_words(one.text, known, file->escape); !words)
        must_be_readable(words.error());
      if (one.name != "ENV" && one.name != "ARG" && one.name != "LABEL") continue;
      if (const auto pairs = parse_assignments(one, file->escape)) {
        for (const Assignment& pair : *pairs) must(!pair.name.empty(), "a variable has a name");
      } else {
        must_be_readable(pairs.error());
      }
    }
  }
  const auto ignored = IgnoreFile::parse(text);
  for (const char* path : {"a", "a/b", ".git/config"}) {
    if (!ignored.has_exceptions() && ignored.matches("a")) must(ignored.matches("a/b"), path);
  }
  return 0;
}
