spc_unit_test(image_test
  SOURCES image_challenge_test.cpp image_config_test.cpp image_eviction_test.cpp image_location_test.cpp image_manifest_test.cpp image_record_test.cpp image_reference_test.cpp
    image_user_source_test.cpp image_credentials_test.cpp
  LIBS spc_base spc_reference spc_config spc_registry spc_store spc_credentials)
target_compile_definitions(image_test PRIVATE SPC_CONFIG_PAGE="${PROJECT_SOURCE_DIR}/runtime/image/config/CONFIG.md")
