;;;; UTF-8 compared with SBCL's coders, at every length and place, and octets to be refused.

(in-package #:clgrpc.tests.base)

(defparameter *alphabets*
  '("abcdefgh" "abcdefghé" "aéдb" "éдü" "éдüж€" "é€𝄞a" "日本語")
  "From mostly ASCII to none; one to four octets a character.")

(defun string-over (alphabet length)
  (let ((string (make-string length)))
    (dotimes (i length string)
      (setf (char string i) (char alphabet (mod (* 7 (1+ i) (1+ i)) (length alphabet)))))))

(test utf8-agrees-with-sbcl
  (dolist (alphabet *alphabets*)
    (dotimes (length 70)
      (let* ((string (string-over alphabet length))
             (expected (coerce (sb-ext:string-to-octets string :external-format :utf-8) 'octets)))
        (is (= (length expected) (utf8-length string)))
        (is (equalp expected (string-octets string)))
        (is (string= string (octets-string expected)))
        (dotimes (offset 9)
          (let ((octets (make-array (+ offset (length expected) 3)
                                    :element-type 'octet :initial-element 7)))
            (is (= (+ offset (length expected)) (encode-utf8 string octets offset)))
            (is (equalp expected (subseq octets offset (+ offset (length expected)))))
            (is (every (lambda (octet) (= octet 7)) (subseq octets 0 offset)))
            (is (every (lambda (octet) (= octet 7)) (subseq octets (+ offset (length expected)))))
            (is (string= string (decode-utf8 octets offset (+ offset (length expected)))))))))))

(test base-strings-come-of-ascii-only
  (is (typep (octets-string (octets-of 97 98)) 'simple-base-string))
  (is (typep (octets-string (octets-of 195 169)) 'wide-string))
  (is (null (ascii-string (octets-of 97 97 97 97 97 97 97 97 97 128) 0 10)))
  (dotimes (at 20)
    (let ((octets (make-array 20 :element-type 'octet :initial-element 97)))
      (setf (aref octets at) 200)
      (is (null (ascii-string octets 0 20)))
      (is (string= (make-string at :initial-element #\a) (ascii-string octets 0 at))))))

(test strings-of-any-kind-are-encoded
  (is (equalp (octets-of 97 98) (string-octets (coerce "ab" 'simple-base-string))))
  (is (equalp (octets-of 98) (string-octets (make-array 1 :element-type 'character
                                                          :displaced-to "ab"
                                                          :displaced-index-offset 1))))
  (is (equalp (octets-of #xEF #xBF #xBD) (string-octets (string (code-char #xD800))))))

(test encoding-without-room-is-an-error
  (dolist (string (list (string-over "abc" 20) (coerce (string-over "abc" 20) 'simple-base-string)
                        (string-over "é€" 20)))
    (dotimes (room (utf8-length string))
      (signals error (encode-utf8 string (make-octets room) 0)))))

(test what-is-no-utf8
  (loop for (position . octets) in '((0 #x80) (0 #xC0 #xAF) (0 #xC1 #xBF) (1 97 #xC3) (0 #xC3 97)
                                     (0 #xE0 #x80 #x80) (0 #xE2 #x82) (0 #xED #xA0 #x80)
                                     (0 #xF0 #x80 #x80 #x80) (0 #xF4 #x90 #x80 #x80) (0 #xF5)
                                     (0 #xFF) (2 #xC3 #xA9 #xBF))
        do (let ((octets (apply #'octets-of octets)))
             (with-signalled (condition invalid-utf8 (octets-string octets))
               (is (= position (invalid-utf8-position condition))))
             (signals error (decode-utf8 octets 0 (1+ (length octets)))))))
