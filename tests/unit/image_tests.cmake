spc_unit_test(image_test
  SOURCES image_challenge_test.cpp image_config_test.cpp image_eviction_test.cpp image_location_test.cpp image_manifest_test.cpp image_record_test.cpp image_reference_test.cpp
    image_user_source_test.cpp image_credentials_test.cpp
  LIBS spc_base spc_image_reference spc_image_config spc_image_registry spc_image_store spc_image_credentials)
target_compile_definitions(image_test PRIVATE SPC_CONFIG_PAGE="${PROJECT_SOURCE_DIR}/runtime/image/CONFIG.md")
