// An archive through the converter, as layer-writer runs it but without process and sandbox. An
// independent reader checks the output.

#include <sys/stat.h>

#include <cstring>

#include "lib/property.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr LayerLimits kLimits{.tar_bytes = 8 << 20, .image_bytes = 16 << 20, .entries = 2000};

bool allowed_xattr(const std::string& name) {
  return (name.starts_with("user.") && !name.starts_with("user.overlay.")) ||
         name == "user.overlay.opaque" || name == "trusted.overlay.opaque";
}

void check(const std::string& path, const test::Found& found) {
  for (std::string_view rest = path; !rest.empty();) {
    const auto slash = std::min(rest.find('/'), rest.size());
    const std::string_view name = rest.substr(0, slash);
    must(!name.empty() && name.size() <= 255 && name != "." && name != ".." &&
             !name.starts_with(".wh."),
         "names are names");
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  must(found.uid == 0 && found.gid == 0, "everything belongs to 0:0");
  must((found.mode & (S_ISUID | S_ISGID)) == 0, "nothing is setuid or setgid");
  must(!S_ISBLK(found.mode) && !S_ISSOCK(found.mode), "there are no devices and sockets");
  must(!S_ISCHR(found.mode) || found.device == 0, "whiteouts are the only character devices");
  must(!S_ISLNK(found.mode) || (!found.data.empty() && found.data.size() < 4096),
       "links have targets");
  for (const auto& [name, value] : found.xattrs)
    must(allowed_xattr(name), "attributes are the user's own");
}

}  // namespace

FUZZ_TARGET(layer) {
  const std::string_view archive = text_of(data, size);
  const auto converted = test::convert(archive, 0, kLimits);
  if (!converted.layer) {
    must_be_readable(converted.layer.error());
    return 0;
  }
  const auto image = converted.image();
  must(image.count("") == 1 && S_ISDIR(image.at("").mode), "there is a root");
  must(image.size() <= 1 + kLimits.entries * 2100, "an archive makes a bounded number of things");
  for (const auto& [path, found] : image) check(path, found);
  if (size % 8 == 0) {
    const auto again = test::convert(test::zstd(archive), 2, kLimits);
    must(again.layer && test::contents(again.file.get()) == test::contents(converted.file.get()),
         "compression and the number of threads do not matter");
  }
  return 0;
}

#ifndef SPC_REPLAY
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed);

/// Repairs the checksums of blocks that look like headers, so that mutations get past them.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  for (std::size_t at = 0; at + 512 <= size && seed % 16 != 0; at += 512) {
    if (std::memcmp(data + at + 257, "ustar", 5) != 0) continue;
    const std::string block =
        test::Header::sum(std::string(reinterpret_cast<const char*>(data) + at, 512));
    std::memcpy(data + at, block.data(), 512);
  }
  return size;
}
#endif
