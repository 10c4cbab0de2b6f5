from ttdg.cli import main

main()
