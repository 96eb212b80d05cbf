;;;; Texts that are lists with commas between their elements, as headers and variables of the
;;;; environment have them.

(in-package #:clgrpc.base)

(defun split-list (text)
  "The elements of TEXT, which have commas between them, without the blanks around them and without
those that are empty (RFC 9110 section 5.6.1.2)."
  (loop for start = 0 then (1+ comma)
        for comma = (position #\, text :start start)
        for element = (string-trim '(#\Space #\Tab) (subseq text start comma))
        unless (string= "" element) collect element
        while comma))
