# How the rooms of the code are built: a static library each, programs of them, and what is installed.
set(SPC_PROGRAM_DIR ${PROJECT_BINARY_DIR}/libexec)

# All files of a target are compiled as one: each alone would have the standard library's templates again, which is most of what
# is compiled. A class whose members have types of its own file only is no mistake then.
function(spc_group target)
  if(SPC_GROUPS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# With groups the standard library's headers are compiled once for all rooms, and once for tests; `first` is the first of them.
# SPC_GROUPS=OFF shows that each file includes what it uses.
function(spc_headers target first)
  if(NOT SPC_GROUPS)
    return()
  elseif(NOT target STREQUAL first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN} <algorithm> <array> <charconv> <chrono> <cstdint> <cstdio> <cstring> <functional>
                              <map> <memory> <optional> <set> <span> <string> <string_view> <utility> <variant> <vector>)
  endif()
endfunction()

# spc_room(NAME SOURCES... LIBS...): the room's files are compiled in groups, since most of the time goes into the headers
# that they share. Dependencies of a library are linked as well.
function(spc_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(${name} PUBLIC spc_flags ${ROOM_LIBS})
  set_target_properties(${name} PROPERTIES SPC_READS_IMAGES "${SPC_READS_IMAGES}")
  spc_group(${name})
  spc_headers(${name} spc_base)
endfunction()

# spc_computes(NAME): the room works on every byte of an image, so that its speed is worth the time to compile. With sanitizers
# its tests would take minutes.
function(spc_computes name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O2>)
  if(SPC_SANITIZE)
    target_compile_options(${name} PRIVATE -O1)
  endif()
  set_target_properties(${name} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON) # which have the other rooms' options
endfunction()

# spc_static_library(VARIABLE NAME): libNAME.a; the shared one where that is wanted.
function(spc_static_library variable name)
  if(SPC_SHARED_LIBRARIES)
    find_library(${variable} ${name} REQUIRED)
  else()
    find_library(${variable} lib${name}.a REQUIRED)
  endif()
endfunction()

# spc_program(NAME [STATIC] [READABLE] SOURCES... LIBS...): a helper of its own process. Mode 0711: a program that users
# cannot read cannot be traced, or robbed of its descriptors, by other processes of its user between execve and its first line.
# READABLE, mode 0755: it makes user namespaces, for which a process must be allowed to write its own files in /proc.
function(spc_program name)
  cmake_parse_arguments(PROGRAM "STATIC;READABLE" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${PROGRAM_SOURCES})
  target_link_libraries(${name} PRIVATE spc_flags ${PROGRAM_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${SPC_PROGRAM_DIR})
  spc_group(${name})
  if(PROGRAM_STATIC AND NOT SPC_SANITIZE)
    target_link_options(${name} PRIVATE -static)
  endif()
  set(readable)
  if(PROGRAM_READABLE)
    set(readable GROUP_READ WORLD_READ)
  endif()
  install(TARGETS ${name} DESTINATION ${SPC_LIBEXECDIR}
          PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE ${readable})
  spc_debug_file(${name})
endfunction()

# Installed files are stripped; `cmake --install build/release --component debug` adds their debug information where
# debuggers look for it.
function(spc_debug_file target)
  install(CODE "
    set(file \"\$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/debug/spank-container/$<TARGET_FILE_NAME:${target}>.debug\")
    get_filename_component(directory \"\${file}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${directory}\")
    execute_process(COMMAND ${CMAKE_OBJCOPY} --only-keep-debug $<TARGET_FILE:${target}> \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT debug EXCLUDE_FROM_ALL)
endfunction()
