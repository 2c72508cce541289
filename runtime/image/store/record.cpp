#include "image/store/record.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/records.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxOrigins = 64;

template <typename Number>
Number number_in(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void set(ImageOrigin& origin, std::string_view key, std::string_view value) {
  if (key == "registry") origin.registry = value;
  if (key == "repository") origin.repository = value;
  if (key == "user") origin.user = number_in<std::uint32_t>(value);
  if (key == "name") origin.name = value;
  if (key == "platform") origin.platform = value;
  if (key == "public_until") origin.public_until = number_in<std::int64_t>(value);
}

}  // namespace

std::string serialize(const ImageRecord& record) {
  ImageRecordHeader header;
  std::memcpy(header.magic, ImageRecordHeader::kMagic, sizeof header.magic);
  header.layer_count = static_cast<std::uint32_t>(record.layers.size());
  header.layer_format = record.layer_format;
  std::uint64_t offset = sizeof header + record.layers.size() * sizeof(Digest);
  const auto place = [&](const std::string& bytes) {
    const ImageRecordHeader::Section section{.offset = offset, .size = bytes.size()};
    offset += bytes.size();
    return section;
  };
  header.settings = place(record.settings);
  header.manifest = place(record.manifest);
  header.config = place(record.config);

  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Digest& layer : record.layers)
    out.append(reinterpret_cast<const char*>(layer.bytes.data()), layer.bytes.size());
  return out + record.settings + record.manifest + record.config;
}

Result<ImageRecord> parse_image_record(std::string_view bytes) {
  const auto damaged = [] {
    return Error(ErrorKind::corrupt, "the image record in the store is corrupt");
  };
  ImageRecordHeader header;
  if (bytes.size() < sizeof header) return damaged();
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers ||
      bytes.size() - sizeof header < header.layer_count * sizeof(Digest)) {
    return damaged();
  }
  for (const auto& section : {header.settings, header.manifest, header.config}) {
    if (section.offset > bytes.size() || section.size > bytes.size() - section.offset)
      return damaged();
  }
  const auto section = [&](const ImageRecordHeader::Section& at) {
    return bytes.substr(static_cast<std::size_t>(at.offset), static_cast<std::size_t>(at.size));
  };
  ImageRecord record;
  record.layer_format = header.layer_format;
  record.layers.resize(header.layer_count);
  for (std::size_t i = 0; i < record.layers.size(); ++i) {
    std::memcpy(record.layers[i].bytes.data(), bytes.data() + sizeof header + i * sizeof(Digest),
                sizeof(Digest));
  }
  record.settings = section(header.settings);
  record.manifest = section(header.manifest);
  record.config = section(header.config);
  return record;
}

std::string ImageOrigin::place() const {
  return user ? "user=" + std::to_string(*user) : registry + "/" + repository;
}

const ImageOrigin* ImageOrigins::find(std::string_view place) const {
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [&](const auto& origin) { return origin.place() == place; });
  return found == all_.end() ? nullptr : &*found;
}

void ImageOrigins::add(ImageOrigin origin) {
  const auto known = std::find_if(all_.begin(), all_.end(),
                                  [&](const auto& one) { return one.place() == origin.place(); });
  if (known != all_.end()) all_.erase(known);
  all_.push_back(std::move(origin));
  if (all_.size() > kMaxOrigins) all_.erase(all_.begin());
}

std::int64_t ImageOrigins::public_until() const {
  std::int64_t until = 0;
  for (const ImageOrigin& origin : all_) until = std::max(until, origin.public_until);
  return until;
}

std::string ImageOrigins::serialize() const {
  std::string out;
  for (const ImageOrigin& origin : all_) {
    add_record(out, "origin", "");
    if (origin.user) {
      add_record(out, "user", std::to_string(*origin.user));
    } else {
      add_record(out, "registry", origin.registry);
      add_record(out, "repository", origin.repository);
    }
    add_record(out, "name", origin.name);
    add_record(out, "platform", origin.platform);
    add_record(out, "public_until", std::to_string(origin.public_until));
  }
  return out;
}

ImageOrigins ImageOrigins::parse(std::string_view bytes) {
  ImageOrigins origins;
  for (Records records(bytes); records.next();) {
    if (records.key() == "origin") origins.all_.emplace_back();
    if (!origins.all_.empty()) set(origins.all_.back(), records.key(), records.value());
  }
  return origins;
}

std::vector<std::string> setting_values(const std::string& settings, std::string_view key) {
  std::vector<std::string> values;
  for (Records records(settings); records.next();) {
    if (records.key() == key) values.emplace_back(records.value());
  }
  return values;
}

}  // namespace spc
