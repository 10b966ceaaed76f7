package sanity_test

const referenceEnv = "SANITY_REFERENCE_DRIVER"

func runReference() int { return 0 }
