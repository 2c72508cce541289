# The Container Device Interface: files, what counts of them, and what they come to.
find_package(nlohmann_json REQUIRED)
spc_unit_test(cdi_test
  SOURCES cdi_files_test.cpp cdi_registry_test.cpp cdi_hook_test.cpp cdi_generate_test.cpp
  LIBS spc_hooks spc_base nlohmann_json::nlohmann_json)
target_compile_definitions(cdi_test PRIVATE SPC_CDI_FILES="${CMAKE_CURRENT_SOURCE_DIR}/cdi")
