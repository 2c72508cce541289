#pragma once

#include <string>

#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

namespace spc::test {

inline std::string converted(const Tar& tar, LayerCompression compression = LayerCompression::zstd,
                             LayerFormat format = LayerFormat::squashfs) {
  const auto layer = convert(tar.end(), 0, {.compression = compression, .format = format});
  if (!layer.layer) throw std::logic_error(layer.why());
  return contents(layer.file.get());
}

/// Returns a small image with each inode type.
inline std::string sample_image(LayerCompression compression = LayerCompression::zstd,
                                LayerFormat format = LayerFormat::squashfs) {
  const auto note = record("SCHILY.xattr.user.note", "longer than a reference");
  return converted(Tar()
                       .directory("d/", 01755)
                       .file("d/a", "first in the fragment")
                       .file("d/b", "second in it", 0600)
                       .file("big", noise(140'000) + std::string(150'000, 'x'))
                       .hard_link("d/h", "big")
                       .file("holes", std::string(131'072, '\0') + std::string(200'000, 'y'))
                       .file("empty", "")
                       .directory("void/")
                       .symlink("link", "d/a")
                       .entry({.name = "fifo", .type = '6', .mode = 0644})
                       .file(".wh.gone", "")
                       .directory("hide/")
                       .file("hide/.wh..wh..opq", "")
                       .file("hide/f", "x")
                       .pax(note)
                       .file("note")
                       .pax(note + record("SCHILY.xattr.user.other", "1"))
                       .file("note2"),
                   compression, format);
}

}  // namespace spc::test
