#include "catch.hpp"
#include "spank_container/runtime.h"

#include <cstring>
#include <string>

namespace {

struct Handle {
  spc_runtime* rt = nullptr;
  Handle() { REQUIRE(spc_open(nullptr, nullptr, &rt) == SPC_OK); }
  ~Handle() { spc_close(rt); }
};

spc_options options_for(const char* image) {
  spc_options options{};
  options.size = sizeof options;
  options.image = image;
  options.writable = SPC_UNSET;
  options.mount_home = SPC_UNSET;
  return options;
}

}  // namespace

TEST_CASE("a missing handle or argument is an error, not a crash") {
  CHECK(spc_open(nullptr, nullptr, nullptr) == SPC_E_INVALID);
  CHECK(spc_check(nullptr, nullptr) == SPC_E_INVALID);
  Handle handle;
  CHECK(spc_check(handle.rt, nullptr) == SPC_E_INVALID);
  CHECK(spc_task_enter(handle.rt, nullptr, nullptr) == SPC_E_INVALID);
  CHECK(spc_step_start(handle.rt, nullptr) == SPC_E_INVALID);
  spc_close(nullptr);
}

TEST_CASE("the error of a check names the option") {
  Handle handle;
  const auto options = options_for("UPPER CASE");
  CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
  CHECK(std::string(spc_error_message(handle.rt)).starts_with("--container-image: "));
}

TEST_CASE("options of an older caller are accepted") {
  struct {
    size_t size;
    const char* image;
  } old{sizeof old, "ubuntu:22.04"};
  Handle handle;
  CHECK(spc_check(handle.rt, reinterpret_cast<const spc_options*>(&old)) == SPC_OK);
}

TEST_CASE("options of a newer caller are accepted") {
  struct {
    spc_options known;
    char unknown[64];
  } newer{};
  newer.known = options_for("ubuntu:22.04");
  newer.known.size = sizeof newer;
  Handle handle;
  CHECK(spc_check(handle.rt, &newer.known) == SPC_OK);
}

TEST_CASE("a pull policy is one of four words") {
  Handle handle;
  auto options = options_for("ubuntu");
  for (const char* word : {"newer", "missing", "always", "never"}) {
    options.pull = word;
    CHECK(spc_check(handle.rt, &options) == SPC_OK);
  }
  options.pull = "sometimes";
  CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
  CHECK(std::string(spc_error_message(handle.rt)) ==
        "--container-pull: \"sometimes\" is not allowed (hint: newer, missing, always or never)");
}

TEST_CASE("a platform has an operating system and an architecture") {
  Handle handle;
  auto options = options_for("ubuntu");
  for (const char* good : {"linux/amd64", "linux/arm64/v8"}) {
    options.platform = good;
    CHECK(spc_check(handle.rt, &options) == SPC_OK);
  }
  options.platform = "arm64";
  CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
  CHECK(std::string(spc_error_message(handle.rt)) ==
        "--container-platform: platform \"arm64\": use OS/ARCHITECTURE, for example linux/amd64");
}

TEST_CASE("names of --container-env are checked") {
  Handle handle;
  auto options = options_for("ubuntu");
  const char* good[] = {"A,B", "C", "D_*,E=f=g", nullptr};
  options.env = good;
  CHECK(spc_check(handle.rt, &options) == SPC_OK);
  for (const char* names : {"A,,B", "A*=b", "1A", "A B", "A\nB", "\xc3\xa4"}) {
    const char* bad[] = {names, nullptr};
    options.env = bad;
    CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
    CHECK(std::string(spc_error_message(handle.rt)).starts_with("--container-env: invalid format: \""));
  }
}

TEST_CASE("more mounts than a container can have are refused, in one option or in many") {
  Handle handle;
  auto options = options_for("ubuntu");
  std::string all;
  for (int i = 0; i < 10'000; ++i) all += (i == 0 ? "/a:/b" : ",/a:/b") + std::to_string(i);
  const char* one[] = {all.c_str(), nullptr};
  options.mounts = one;
  CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
  CHECK(std::string(spc_error_message(handle.rt)) == "--container-mounts: more than 400 mounts");
  std::string half = all.substr(0, all.find(",/a:/b250"));
  std::string other = half;
  for (std::size_t at = 0; (at = other.find("/b", at)) != std::string::npos; ++at) other[at + 1] = 'c';
  const char* two[] = {half.c_str(), other.c_str(), nullptr};
  options.mounts = two;
  CHECK(spc_check(handle.rt, &options) == SPC_E_INVALID);
  CHECK(std::string(spc_error_message(handle.rt)) == "--container-mounts: more than 400 mounts");
  two[1] = nullptr;
  CHECK(spc_check(handle.rt, &options) == SPC_OK);
}
