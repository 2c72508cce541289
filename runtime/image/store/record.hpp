#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "protocol/image_record.hpp"

namespace spc {

/// The content of a file in records/; protocol/image_record.hpp has the format.
struct ImageRecord {
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< names in layers/sha256/, bottom layer first
  std::string settings;        ///< records `key=value\0`
  std::string manifest;
  std::string config;
};

std::string serialize(const ImageRecord& record);
Result<ImageRecord> parse_image_record(std::string_view bytes);

/// The origin of an image: a repository in a registry, or a user who provided it.
struct ImageOrigin {
  std::string registry;
  std::string repository;
  std::optional<std::uint32_t> user;  ///< of a local image; registry and repository are empty then
  std::string name;                   ///< the full name of the last request
  std::string platform;
  /// Until when (seconds since 1970) this origin serves the image to everybody; 0: it is private.
  std::int64_t public_until = 0;

  /// The origin as one text without spaces: `registry:5000/team/app` or `user=1000`.
  [[nodiscard]] std::string place() const;
};

/// The content of images/origins/<hex>: each origin that has proven to have every byte of the
/// image. Readable by the service user only. It says who may use the image, and never which image a
/// name means: whoever writes it could not make others run something else.
class ImageOrigins {
 public:
  [[nodiscard]] const std::vector<ImageOrigin>& all() const { return all_; }
  /// Null if the image did not come from there.
  [[nodiscard]] const ImageOrigin* find(std::string_view place) const;
  /// Adds or replaces an origin.
  void add(ImageOrigin origin);
  /// The latest one.
  [[nodiscard]] std::int64_t public_until() const;

  [[nodiscard]] std::string serialize() const;
  /// Unreadable entries are skipped: they must be proven again.
  static ImageOrigins parse(std::string_view bytes);

 private:
  std::vector<ImageOrigin> all_;
};

/// Values of `key=value\0` records (such as ImageRecord::settings), in order.
std::vector<std::string> setting_values(const std::string& settings, std::string_view key);

}  // namespace spc
