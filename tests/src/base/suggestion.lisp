;;;; Names that a misspelt one probably means.

(in-package #:clgrpc.tests.base)

(test suggestions-are-near
  "A suggestion begins with the given text, or is near to it; a short name with little in common is
none."
  (loop for (name suggested) in '(("list" "listen") ("listne" "listen") ("nmae" "name")
                                  ("kind" nil) ("colour" nil) ("nam" nil) ("tagz" "tags"))
        do (is (equal suggested (suggested-name name '("id" "name" "listen" "tags")))
               "~A" name))
  (is (null (suggested-name "name" '()))))
