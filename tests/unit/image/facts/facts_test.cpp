#include "convert/facts.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// Files given by their paths only. A directory ends with '/'.
class Paths final : public SeenFiles {
 public:
  explicit Paths(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  Result<void> walk(const std::function<void(const std::string&, bool)>& visit) override {
    for (const std::string& path : paths_) {
      const bool is_directory = path.ends_with('/');
      visit(is_directory ? path.substr(0, path.size() - 1) : path, is_directory);
    }
    return {};
  }
  std::string text(const std::string& /*path*/, std::size_t /*limit*/) override { return {}; }

 private:
  std::vector<std::string> paths_;
};

std::string fact_of(const FactSheet& sheet, std::string_view what) {
  for (const Fact& fact : sheet.facts)
    if (fact.what == what) return fact.value;
  return "missing";
}

}  // namespace

TEST_CASE("facts_ignore_documentation_and_metadata") {
  const std::string packages = "opt/venv/lib/python3.12/site-packages/";
  Paths files({"usr/lib/libnccl.so.2.21.5", "usr/include/libcudart.so.12.9.1",
               "usr/share/doc/x/libcudnn.so.9.1.0", packages + "torch-2.3.0+cu121.dist-info/",
               packages + "torch-2.3.0+cu121.dist-info/jax-0.4.0.dist-info/",
               packages + "tests/libmpi.so.40.30.1", "usr/bin/python3.12"});
  const auto sheet = facts_of(files);
  REQUIRE(sheet);
  CHECK(fact_of(*sheet, "nccl") == "2.21.5");
  CHECK(fact_of(*sheet, "python") == "3.12");
  CHECK(fact_of(*sheet, "frameworks") == "PyTorch 2.3.0+cu121");
  for (const char* what : {"cuda", "cudnn", "mpi"}) CHECK(fact_of(*sheet, what) == "");
}

TEST_CASE("facts_survive_settings_and_are_bounded") {
  const std::string end(1, '\0');
  CHECK(!facts_in("env=A=1" + end));
  const auto sheet = facts_in(
      "env=A=1" + end + fact_records({.facts = {{"cuda", "12.4"}, {"os", "Toy"}}, .labels = "{}"}));
  REQUIRE(sheet);
  CHECK(sheet->facts.size() == facts_from({}).size());
  CHECK(sheet->facts.front().what == "os");
  CHECK(sheet->facts.front().value == "Toy");
  CHECK(sheet->labels == "{}");

  const auto hostile = facts_in("fact=os=a\033[31m" + std::string(100'000, 'x') + end +
                                "fact=unknown=1" + end + "fact=" + end);
  REQUIRE(hostile);
  CHECK(hostile->facts.size() == facts_from({}).size());
  CHECK(hostile->facts.front().value.size() < 400);
  CHECK(hostile->facts.front().value.find('\033') == std::string::npos);
}

TEST_CASE("facts_of_variables_are_recognised") {
  for (const Fact& fact : facts_of_variables(
           {"CUDA_VERSION=12.4.1", "NV_CUDNN_VERSION=9.1", "CUDA_VERSIONS=1", "PATH=/bin"})) {
    INFO(fact.what);
    CHECK(fact.value.empty() !=
          (fact.what == "cuda" || fact.what == "cudnn" || fact.what == "driver"));
  }
}
