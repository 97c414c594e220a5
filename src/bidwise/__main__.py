from bidwise.cli import main

main()
