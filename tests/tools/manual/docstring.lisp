;;;; What is read out of docstrings.

(in-package #:clgrpc.tests.manual)

(defun parsed (text)
  (manual:parse-docstring text))

(test rows-are-keywords
  "A row is a name in capitals with two spaces, and goes on in indented lines."
  (is (equal '((:prose "Begin X.") (:rows ("LOOPS" . "how many there are") ("A" . "b"))
               (:prose "All others are refused."))
             (manual:docstring-blocks
              (parsed (format nil "Begin X.~%LOOPS   how many~%        there are~%A       b~@
                                   All others are refused."))))))

(test lines-that-are-indented-stay-as-they-are
  "Indented lines that follow no row are shown with their spaces."
  (is (equal '((:prose "Looked for in:") (:lines "  first;" "  second."))
             (manual:docstring-blocks
              (parsed (format nil "Looked for in:~%  first;~%  second."))))))

(test sentences-with-a-place-of-their-own
  "Values, conditions and threads are found wherever they stand; the first sentence stays."
  (let ((docstring (parsed "Return X. Signal MISUSE for Y. It is so (RFC 9113, section 5.1).
Return Z as well. From any thread.")))
    (is (equal '((:prose "Return X. It is so (RFC 9113, section 5.1)."))
               (manual:docstring-blocks docstring)))
    (is (equal '("Signal MISUSE for Y.") (manual:docstring-conditions docstring)))
    (is (equal '("Return Z as well.") (manual:docstring-values docstring)))
    (is (equal '("From any thread.") (manual:docstring-threads docstring)))
    (is (equal '("RFC 9113, section 5.1") (manual:docstring-sources docstring)))))

(test no-docstring
  (is (null (manual:docstring-blocks (parsed nil)))))
