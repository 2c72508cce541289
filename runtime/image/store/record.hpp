#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "protocol/image_record.hpp"

namespace spc {

/// The contents of a file in images/: see base/image_record.hpp for how it lies there.
struct ImageRecord {
  std::int64_t public_until = 0;
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< names in layers/sha256/, bottom layer first
  std::string settings;        ///< records `key=value\0`
  std::string manifest;
  std::string config;
};

std::string serialize(const ImageRecord& record);
Result<ImageRecord> parse_image_record(std::string_view bytes);

/// Where an image came from: a repository at a registry, or a user who brought it from his own files.
struct ImageOrigin {
  std::string registry;
  std::string repository;
  std::optional<std::uint32_t> user;  ///< of a local image; registry and repository are empty then
  std::string name;                   ///< by which it was asked for last, in full
  std::string platform;
  /// Digests of indexes that lead to the image for this platform: they tell whether a tag has moved.
  std::vector<Digest> indexes;
  /// Until when (seconds since 1970) it is known that this origin gives the image to anybody; 0: it is private.
  std::int64_t public_until = 0;

  /// The place in one text, without spaces: `registry:5000/team/app` or `user=1000`.
  [[nodiscard]] std::string place() const;
};

/// The contents of images/origins/<hex>: each place that has proven to have every byte of the image. Nobody but the
/// service user reads it.
class ImageOrigins {
 public:
  [[nodiscard]] const std::vector<ImageOrigin>& all() const { return all_; }
  /// Null when the image did not come from there.
  [[nodiscard]] const ImageOrigin* find(std::string_view place) const;
  /// Adds an origin, or replaces what is known of its place; indexes that led to the image still do.
  void add(ImageOrigin origin);
  /// The latest of all: what the record says.
  [[nodiscard]] std::int64_t public_until() const;

  [[nodiscard]] std::string serialize() const;
  /// What cannot be read is left out: then it has to be proven again.
  static ImageOrigins parse(std::string_view bytes);

 private:
  std::vector<ImageOrigin> all_;
};

/// Values of records (of ImageRecord::settings, for example) `key=value\0`, in their order.
std::vector<std::string> setting_values(const std::string& settings, std::string_view key);

}  // namespace spc
