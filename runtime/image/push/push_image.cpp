#include "image/push/push_image.hpp"

#include <set>

namespace spc {
namespace {

/// Layers first: whoever looks at the repository meanwhile finds no configuration without them.
std::vector<Descriptor> blobs_of(const Manifest& manifest) {
  std::vector<Descriptor> blobs;
  std::set<Digest> seen;
  for (const Descriptor& layer : manifest.layers) {
    if (seen.insert(layer.digest).second) blobs.push_back(layer);
  }
  if (seen.insert(manifest.config.digest).second) blobs.push_back(manifest.config);
  return blobs;
}

}  // namespace

Result<PushCounts> push_image(PushSource& from, RegistrySession& session, const std::string& tag,
                              const PushMeter& meter) {
  RegistryPush to(session);
  const PushedManifest& manifest = from.manifest();
  const auto blobs = blobs_of(manifest.parsed);
  const std::string neighbour = from.repository_at(session.registry);
  PushCounts counts;
  for (const Descriptor& blob : blobs) counts.total_bytes += blob.size;
  std::uint64_t done = 0;
  for (const Descriptor& blob : blobs) {
    if (meter) meter(done, counts.total_bytes);
    if (SPC_TRY(to.has_blob(blob))) {
      ++counts.there;
    } else if (!neighbour.empty() && neighbour != session.repository &&
               SPC_TRY(to.mount(blob, neighbour))) {
      ++counts.mounted;
    } else {
      const auto bytes = SPC_TRY(from.blob(blob));
      if (bytes.size != blob.size)
        return Error(ErrorKind::corrupt,
                     "blob " + blob.digest.str() + ": has another size than stated");
      SPC_TRY(to.upload(blob, bytes, [&](std::uint64_t sent) {
        if (meter) meter(done + sent, counts.total_bytes);
      }));
      ++counts.sent;
      counts.sent_bytes += blob.size;
    }
    done += blob.size;
  }
  SPC_TRY(to.put_manifest(manifest.text, manifest.media_type, tag));
  return counts;
}

}  // namespace spc
