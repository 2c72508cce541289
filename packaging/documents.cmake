# install_documents(FILE...): Markdown pages of the source tree with the paths that an installation
# has. A test checks that the links in installed pages resolve (tests/architecture/documents.py).
function(install_documents)
  foreach(file IN LISTS ARGN)
    get_filename_component(name ${file} NAME)
    file(READ ${file} text)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    # How to start in the source tree.
    string(REGEX REPLACE "\n## Quick start\n.*\n## Use\n" "\n## Use\n" text "${text}")
    # The pages of man are named beside the files.
    string(REGEX REPLACE " \\(`packaging/man/[^`]*`\\)" "" text "${text}")
    string(REGEX REPLACE "`packaging/compat/[a-z]*/([a-z]*)-compat\\.1`" "`man \\1`" text "${text}")
    string(REPLACE "`packaging/migration/`" "`from-*.md`, `tutorials.md`" text "${text}")
    string(REGEX REPLACE "packaging/(examples/|migration/)" "\\1" text "${text}")
    string(REPLACE "migration/" "" text "${text}")
    string(REGEX REPLACE "\\.github/(SECURITY|CONTRIBUTING)" "\\1" text "${text}")
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/documents/${name} "${text}")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/documents/${name} DESTINATION ${CMAKE_INSTALL_DOCDIR})
  endforeach()
endfunction()
