;;;; Names that a misspelt one probably means.

(in-package #:clgrpc.tests.base)

(test suggestions-are-near
  "A name that begins with what was written, or is near to it; a short one that shares little with
it is none."
  (loop for (name suggested) in '(("list" "listen") ("listne" "listen") ("nmae" "name")
                                  ("kind" nil) ("colour" nil) ("nam" nil) ("tagz" "tags"))
        do (is (equal suggested (suggested-name name '("id" "name" "listen" "tags")))
               "~A" name))
  (is (null (suggested-name "name" '()))))
