#include "image/signature/kept_signatures.hpp"

#include <algorithm>

#include "base/records.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostKept = 16;  // people who sign one image, and its names

}  // namespace

std::string serialize(const std::vector<ImageSignature>& signatures) {
  std::string records;
  for (const ImageSignature& signature : signatures) {
    // A payload is JSON, which has no NUL in it.
    if (signature.payload.find('\0') != std::string::npos) continue;
    add_record(records, "payload", signature.payload);
    add_record(records, "signature", signature.signature);
    add_record(records, "key", signature.key);
  }
  return records;
}

std::vector<ImageSignature> parse_kept_signatures(std::string_view records) {
  std::vector<ImageSignature> signatures;
  for (Records record(records); record.next();) {
    if (record.key() == "payload") {
      if (signatures.size() == kMostKept) break;
      signatures.push_back({std::string(record.value()), "", ""});
    }
    if (signatures.empty()) continue;
    if (record.key() == "signature") signatures.back().signature = record.value();
    if (record.key() == "key") signatures.back().key = record.value();
  }
  return signatures;
}

std::vector<ImageSignature> merged(std::vector<ImageSignature> added,
                                   const std::vector<ImageSignature>& kept) {
  for (const ImageSignature& old : kept) {
    const bool is_new = std::none_of(added.begin(), added.end(), [&](const ImageSignature& one) {
      return one.payload == old.payload && one.signature == old.signature;
    });
    if (is_new && added.size() < kMostKept) added.push_back(old);
  }
  return added;
}

}  // namespace spc
