#include "recipe/recipe.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

const Variables kKnown{{"a", "one"}, {"empty", ""}, {"path", "/usr/lib/x.tar.gz"}, {"b", "x y"}};

std::string expanded(std::string_view text) {
  const auto result = expand(text, kKnown);
  return result ? *result : "error: " + result.error().message();
}

Instruction only(std::string_view text) {
  const auto file = parse_dockerfile(text, "Dockerfile");
  REQUIRE(file);
  REQUIRE(file->instructions.size() == 1);
  return file->instructions[0];
}

std::string refusal(std::string_view text) {
  const auto file = parse_dockerfile(text, "Dockerfile");
  REQUIRE_FALSE(file);
  return file.error().message();
}

}  // namespace

TEST_CASE("recipe_variables_are_expanded_as_by_buildkit") {
  const std::pair<const char*, const char*> cases[] = {
      {"$a", "one"},
      {"${a}x", "onex"},
      {"$unset.", "."},
      {"${unset:-d}", "d"},
      {"${empty:-d}", "d"},
      {"${empty-d}", ""},
      {"${unset-d}", "d"},
      {"${a:+y}${unset:+n}${empty:+n}", "y"},
      {"${empty+y}", "y"},
      {"${unset:-${a}2}", "one2"},
      {"${path#*/}", "usr/lib/x.tar.gz"},
      {"${path##*/}", "x.tar.gz"},
      {"${path%.*}", "/usr/lib/x.tar"},
      {"${path%%.*}", "/usr/lib/x"},
      {"${path/lib/share}", "/usr/share/x.tar.gz"},
      {"${path//\\//_}", "_usr_lib_x.tar.gz"},
      {"'$a'", "$a"},
      {"\"$a\" '$a'", "one $a"},
      {"\\$a", "$a"},
      {"\"\\$a\"", "$a"},
      {"$", "$"},
      {"a$-b", "a$-b"},
      {"x\\", "x"},
  };
  for (const auto& [text, wanted] : cases) {
    CAPTURE(text);
    CHECK(expanded(text) == wanted);
  }
  CHECK(expanded("${unset:?give it}").find("unset: give it") != std::string::npos);
  CHECK(expanded("${a").find("no closing brace") != std::string::npos);
  CHECK(expanded("'a").find("quote") != std::string::npos);
  CHECK(*expand("`$a", kKnown, '`') == "$a");
}

TEST_CASE("recipe_words_are_split_outside_of_quotes_and_values") {
  const auto words = expand_words("x \"a b\" $b ''  \t'c d'e", kKnown);
  REQUIRE(words);
  CHECK(*words == std::vector<std::string>{"x", "a b", "x y", "", "c de"});
}

TEST_CASE("recipe_patterns_match_as_of_a_shell") {
  CHECK(matches_glob("a*c", "abbc"));
  CHECK(matches_glob("*", ""));
  CHECK(matches_glob("[a-c]?", "bz"));
  CHECK(matches_glob("[!a]x", "bx"));
  CHECK_FALSE(matches_glob("[!a]x", "ax"));
  CHECK_FALSE(matches_glob("a?", "a"));
  CHECK(matches_glob("[", "["));
  CHECK(matches_glob(std::string(60, '*') + "b", std::string(5000, 'a') + "b"));
  CHECK_FALSE(matches_glob("*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST_CASE("recipe_lines_are_joined_and_comments_left_out") {
  const auto one = only("# first\nrun apt-get update \\\n  # inside\n\n  && echo '#no' \\ \n -y\n");
  CHECK(one.name == "RUN");
  CHECK(one.line == 2);
  CHECK(one.text == "apt-get update   && echo '#no'  -y");
  CHECK(only("# escape=`\r\nRUN dir C:\\ `\r\n /s\r\n").text == "dir C:\\  /s");
  CHECK(only("#comment\n# escape=`\nRUN a \\\n b").text == "a  b");
  CHECK(only("RUN a\\\\\n").text == "a\\\\");
}

TEST_CASE("recipe_json_form_is_a_list_any_other_text_is_not") {
  const auto list = only("CMD [\"a\", \"b c\"]");
  CHECK(list.is_list);
  CHECK(list.list == std::vector<std::string>{"a", "b c"});
  CHECK_FALSE(only("CMD ['a']").is_list);
  CHECK_FALSE(only("RUN [ -f x ] && y").is_list);
  CHECK_FALSE(only("CMD [1]").is_list);
  CHECK(only("ENTRYPOINT []").is_list);
}

TEST_CASE("recipe_here_documents_belong_to_their_instruction") {
  const auto file = parse_dockerfile(
      "RUN <<EOF\necho a\nEOF\n"
      "RUN python3 <<-'PY' && cat <<MORE\n\tprint($x)\n\tPY\nmore\nMORE\n"
      "COPY <<a.txt <<b.txt /d/\n1\na.txt\n2\nb.txt\n"
      "RUN echo 'x<<EOF' \"<<EOF\" 1 <<<word\n",
      "Dockerfile");
  REQUIRE(file);
  const auto& all = file->instructions;
  REQUIRE(all.size() == 4);
  REQUIRE(all[0].documents.size() == 1);
  CHECK(all[0].documents[0].text == "echo a\n");
  CHECK(all[0].documents[0].expands);
  REQUIRE(all[1].documents.size() == 2);
  CHECK(all[1].documents[0].text == "print($x)\n");
  CHECK_FALSE(all[1].documents[0].expands);
  CHECK(all[1].documents[1].name == "MORE");
  CHECK(all[2].documents[1].text == "2\n");
  CHECK(all[3].documents.empty());
  CHECK(refusal("FROM x\nRUN <<EOF\na\n").find("Dockerfile:2: here-document \"EOF\" has no end") !=
        std::string::npos);
}

TEST_CASE("recipe_flags_are_known_by_instruction") {
  const auto one = only("COPY --from=build --chmod=755 --link a b");
  CHECK(one.flag("from") == "build");
  CHECK(one.flag("link") == "true");
  CHECK(one.text == "a b");
  CHECK(refusal("COPY --form=build a b").find("did you mean --from?") != std::string::npos);
  CHECK(only("RUN --mount=type=cache,target=/x -- true").text == "-- true");
}

TEST_CASE("recipe_errors_name_line_and_cure") {
  CHECK(refusal("FROM a\n\nCOPPY x y\n").find("Dockerfile:3: unknown instruction \"COPPY\" (hint: "
                                              "did you mean COPY?)") != std::string::npos);
  CHECK(refusal("FROM").find("Dockerfile:1: FROM needs a value") != std::string::npos);
  CHECK(refusal("# only a comment\n").find("has no instruction") != std::string::npos);
  CHECK(refusal(std::string_view("RUN a\0b", 7)).find("not a text file") != std::string::npos);
  CHECK(refusal("# escape=x\nRUN a").find("must be") != std::string::npos);
}

TEST_CASE("recipe_assignments_have_two_forms") {
  const auto pairs = parse_assignments(only("ENV A=1 B=\"2 3\" C=x\\ y"), '\\');
  REQUIRE(pairs);
  REQUIRE(pairs->size() == 3);
  CHECK((*pairs)[1].value == "\"2 3\"");
  CHECK((*pairs)[2].value == "x\\ y");
  const auto old = parse_assignments(only("ENV A 1 2  3"), '\\');
  REQUIRE(old);
  CHECK(old->size() == 1);
  CHECK((*old)[0].value == "1 2  3");
  CHECK_FALSE(parse_assignments(only("ENV A"), '\\'));
  const auto argument = parse_assignments(only("ARG A B=2"), '\\');
  REQUIRE(argument);
  CHECK_FALSE((*argument)[0].has_value);
  CHECK((*argument)[1].value == "2");
}

TEST_CASE("recipe_ignore_file_matches_as_of_docker") {
  const auto file = IgnoreFile::parse("# x\n.git\n**/*.o\n/out/\n!out/keep\ndoc/*.md\n\n");
  CHECK(file.has_exceptions());
  for (const char* path : {".git", ".git/config", "a.o", "src/deep/b.o", "out", "out/x", "doc/a.md"})
    CHECK(file.matches(path));
  for (const char* path : {"src/.git", "out/keep", "doc/sub/a.md", "a.oo", "xout"})
    CHECK_FALSE(file.matches(path));
  CHECK(matches_path("a/**/b", "a/b"));
  CHECK(matches_path("a/**/b", "a/x/y/b/c"));
  CHECK_FALSE(matches_path("a/*", "a"));
}
