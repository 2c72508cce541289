#include "record.hpp"

#include <algorithm>
#include <cstring>

namespace spc {
namespace {

void add_record(std::string& out, std::string_view key, std::string_view value) {
  out.append(key).append("=").append(value).push_back('\0');
}

std::string serialize(const ImageOrigin& origin) {
  std::string out;
  add_record(out, "registry", origin.registry);
  add_record(out, "repository", origin.repository);
  add_record(out, "platform", origin.platform);
  for (const Digest& index : origin.indexes) add_record(out, "index", index.str());
  return out;
}

ImageOrigin parse_origin(std::string_view bytes) {
  ImageOrigin origin;
  while (!bytes.empty()) {
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    const std::string_view record = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    const std::size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(std::min(equals + 1, record.size()));
    if (key == "registry") origin.registry = value;
    if (key == "repository") origin.repository = value;
    if (key == "platform") origin.platform = value;
    if (key == "index") {
      if (auto digest = Digest::parse(value)) origin.indexes.push_back(*digest);
    }
  }
  return origin;
}

}  // namespace

std::string serialize(const ImageRecord& record) {
  const std::string origin = serialize(record.origin);
  ImageRecordHeader header;
  std::memcpy(header.magic, ImageRecordHeader::kMagic, sizeof header.magic);
  header.layer_count = static_cast<std::uint32_t>(record.layers.size());
  header.public_until = record.public_until;
  std::uint64_t offset = sizeof header + record.layers.size() * sizeof(Digest);
  const auto place = [&](const std::string& bytes) {
    const ImageRecordHeader::Section section{.offset = offset, .size = bytes.size()};
    offset += bytes.size();
    return section;
  };
  header.settings = place(record.settings);
  header.manifest = place(record.manifest);
  header.config = place(record.config);
  header.origin = place(origin);

  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Digest& layer : record.layers) out.append(reinterpret_cast<const char*>(layer.bytes.data()), layer.bytes.size());
  return out + record.settings + record.manifest + record.config + origin;
}

Result<ImageRecord> parse_image_record(std::string_view bytes) {
  const auto damaged = [] { return Error(ErrorKind::corrupt, "the image's record in the store is damaged"); };
  ImageRecordHeader header;
  if (bytes.size() < sizeof header) return damaged();
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, ImageRecordHeader::kMagic, sizeof header.magic) != 0 ||
      header.layer_count > ImageRecordHeader::kMaxLayers || bytes.size() - sizeof header < header.layer_count * sizeof(Digest)) {
    return damaged();
  }
  for (const auto& section : {header.settings, header.manifest, header.config, header.origin}) {
    if (section.offset > bytes.size() || section.size > bytes.size() - section.offset) return damaged();
  }
  const auto section = [&](const ImageRecordHeader::Section& at) {
    return bytes.substr(static_cast<std::size_t>(at.offset), static_cast<std::size_t>(at.size));
  };
  ImageRecord record;
  record.public_until = header.public_until;
  record.layers.resize(header.layer_count);
  for (std::size_t i = 0; i < record.layers.size(); ++i) {
    std::memcpy(record.layers[i].bytes.data(), bytes.data() + sizeof header + i * sizeof(Digest), sizeof(Digest));
  }
  record.settings = section(header.settings);
  record.manifest = section(header.manifest);
  record.config = section(header.config);
  record.origin = parse_origin(section(header.origin));
  return record;
}

}  // namespace spc
