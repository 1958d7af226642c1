"""What ties agent_es to frameworks: one package for each, imported by nothing else here."""
