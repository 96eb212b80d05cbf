;;;; Text of peers is printed in visible characters, and bounded.

(in-package #:clgrpc.tests.base)

(test what-is-not-to-be-seen-is-escaped
  (flet ((shown (&rest codes) (printable-text (map 'string #'code-char codes))))
    (is (string= "a é 𝄞 \\ \"" (printable-text "a é 𝄞 \\ \"")))
    (is (string= "\\n\\r\\t\\x00\\x1b\\x7f" (shown 10 13 9 0 27 127)))
    (is (string= "\\x80\\x9b\\x9f" (shown #x80 #x9B #x9F)))
    (is (string= "\\u{2028}\\u{2029}\\u{202e}\\u{2066}\\u{200f}\\u{61c}\\u{d800}\\u{e0041}"
                 (shown #x2028 #x2029 #x202E #x2066 #x200F #x61C #xD800 #xE0041)))
    (is (string= "\"a\\\\\\\"\\n\"" (printable-text (format nil "a\\\"~%") :quoted t)))))

(test texts-are-cut
  (let ((long (make-string 5000000 :initial-element #\x)))
    (is (string= "xxx…" (printable-text long :limit 3)))
    (is (string= "xxx" (printable-text "xxx" :limit 3)))
    (is (= 1001 (length (printable-text long))))
    (is (= 1001 (length (bounded-text long))))
    (is (string= "\"xx…" (bounded-text long :limit 3 :escape t)))
    (is (= 11 (length (bounded-text (list 1 (make-array 1000000 :initial-element 7)) :limit 10))))
    (let ((circle (list 1 2)))
      (setf (cddr circle) circle)
      (is (string= "(1 2 1 2…" (bounded-text circle :limit 8))))))

(test printing-stops-at-the-limit
  "Printing without an end is left, and its cleanup forms run."
  (let ((cleaned nil))
    (is (equal '("ababa" t)
               (multiple-value-list
                (with-bounded-text (stream 5)
                  (unwind-protect (loop (write-string "ab" stream))
                    (setf cleaned t))))))
    (is-true cleaned))
  (is (equal '("abcDe" nil) (multiple-value-list
                             (with-bounded-text (stream 5)
                               (write-string "abc" stream)
                               (format stream "~A~C" 'd #\e))))))

(test ranges-of-what-is-not-to-be-seen
  "The first and the last of each range are escaped, their neighbours are not."
  (loop for (first last) in '((0 31) (127 159) (#x61C #x61C) (#x200E #x200F) (#x2028 #x202E)
                              (#x2066 #x2069) (#xD800 #xDFFF) (#xFFF9 #xFFFB) (#xE0000 #xE007F))
        do (dolist (code (list first last)) (is-true (unsafe-char-p (code-char code)) "~X" code))
           (dolist (code (list (1- first) (1+ last)))
             (is-false (and (<= 0 code) (unsafe-char-p (code-char code))) "~X" code))))
