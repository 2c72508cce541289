#include "reference/first_bytes.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

constexpr std::uint64_t kFileSize = 10 << 20;

/// The beginning of a SIF file, as written by the tools.
struct Sif {
  std::string bytes = std::string(4096 + 48 * 585, '\0');
  std::size_t entries = 0;

  Sif() {
    put(0, std::string("#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"
                       "01\0"
                       "02\0",
                       48));
    number<std::int64_t>(88, 48);
    number<std::int64_t>(96, 4096);
  }
  void put(std::size_t at, const std::string& text) { bytes.replace(at, text.size(), text); }
  template <typename Number>
  void number(std::size_t at, Number value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  Sif& add(std::int32_t type, std::int64_t offset, std::int64_t size, std::int32_t file_system = 0,
           std::int32_t part = 0, const std::string& architecture = "02") {
    const std::size_t at = 4096 + entries++ * 585;
    number(at, type);
    bytes[at + 4] = 1;
    number(at + 17, offset);
    number(at + 25, size);
    number(at + 201, file_system);
    number(at + 205, part);
    put(at + 209, architecture);
    return *this;
  }
  Sif& root(std::int32_t file_system, const std::string& architecture = "02",
            std::int64_t size = 4096) {
    return add(0x4004, 32768, size, file_system, 2, architecture);
  }
};

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string outcome(const Sif& sif) {
  const auto table = parse_sif_header(as_bytes(sif.bytes), kFileSize);
  if (!table) return table.error().message();
  const auto root =
      find_sif_root(as_bytes(sif.bytes).subspan(table->offset, table->size), kFileSize, "amd64");
  if (!root) return root.error().message();
  return std::to_string(root->offset) + "+" + std::to_string(root->size);
}

}  // namespace

TEST_CASE("sif_root_file_system_is_found") {
  CHECK(looks_like_sif(as_bytes(Sif().bytes)));
  CHECK_FALSE(looks_like_sif(as_bytes(std::string(100, 'x'))));
  CHECK(outcome(Sif()
                    .add(0x4001, 32768, 100)
                    .add(0x4004, 40960, 77, 1, 4)
                    .root(1)
                    .add(0x4005, 50000, 10)) == "32768+4096");
  CHECK(outcome(Sif().add(0x4004, 36864, 50, 1, 1)) == "36864+50");
}

TEST_CASE("sif_unusable_is_refused_with_reason") {
  CHECK(outcome(Sif().root(5)).starts_with("the SIF file's root file system is encrypted (hint: "));
  CHECK(
      outcome(Sif().root(2))
          .starts_with("the SIF file's root file system is ext3, which is not supported (hint: "));
  CHECK(outcome(Sif().root(4)).starts_with("the SIF file's root file system is not a squashfs"));
  CHECK(outcome(Sif().root(1, "04")) ==
        "the SIF file is for arm64, this node is amd64 (hint: build it for amd64, on a machine of "
        "that architecture)");
  CHECK(outcome(Sif().add(0x4004, 32768, 50, 2, 4))
            .starts_with("the SIF file contains only an overlay"));
  CHECK(outcome(Sif().add(0x400a, 32768, 50)).starts_with("OCI-SIF files are not supported"));
  CHECK(outcome(Sif()) == "the SIF file contains no root file system");
}

TEST_CASE("sif_with_invalid_numbers_is_refused") {
  CHECK(outcome(Sif().root(1, "02", std::int64_t{1} << 62))
            .starts_with("the SIF file is truncated: its root file system extends beyond"));
  CHECK(outcome(Sif().root(1, "02", -5))
            .starts_with("the SIF file is truncated: its root file system extends beyond"));
  const auto with = [](std::size_t at, std::int64_t value) {
    Sif sif;
    sif.root(1).number(at, value);
    return outcome(sif);
  };
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40}) {
    CHECK(with(88, bad) == "the SIF file is corrupt: invalid header");
  }
  CHECK(with(96, 5) == "the SIF file is corrupt: invalid header");
  CHECK(with(96, std::int64_t{1} << 40) ==
        "the SIF file is truncated: it ends within its table of contents (hint: copy it again)");
  Sif version;
  version.put(42, "99");
  CHECK(outcome(version) == "it is a SIF file of version \"99\", only 01 is supported");
  Sif strange;
  strange.root(1, "\xff\xff");  // an unknown architecture code is taken as the host's
  CHECK(outcome(strange) == "32768+4096");
  Sif cut;
  cut.bytes.resize(60);
  CHECK(outcome(cut) == "the SIF file is truncated: it ends within its header");
}
