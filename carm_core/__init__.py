"""Response masks with certificates: which responses may move the policy?"""
