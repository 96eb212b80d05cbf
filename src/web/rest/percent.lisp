;;;; Percent-decoding (RFC 3986, section 2.1) of paths and queries. A text is decoded once, to
;;;; octets that must be UTF-8. In variables of several segments the escapes of a slash remain
;;;; (http.proto, "Path template syntax"); in queries a plus sign is a space.

(in-package #:clgrpc.rest)

(defun refuse-text (text start end)
  (refuse-request 400 :invalid-argument "~A is not percent-encoded UTF-8"
                  (printable-text (subseq text start end) :limit 100 :quoted t)))

(define-hot plain-text-p ((text simple-string) (start index) (end index) (plus boolean)) boolean
  "True if TEXT from START to END needs no decoding: it has no escapes and only ASCII, as a base
string has."
  (not (or (char-position #\% text :start start :end end)
           (and plus (char-position #\+ text :start start :end end))
           (and (not (typep text 'simple-base-string))
                (with-text-type (text)
                  (loop for i of-type index from start below end
                          thereis (< 127 (char-code (schar text i)))))))))

(define-hot part-of ((text simple-string) (start index) (end index)) simple-string
  (assert (<= start end (length text)))
  (etypecase text
    (simple-base-string
     (replace (make-string (- end start) :element-type 'base-char) text :start2 start :end2 end))
    (wide-string (replace (make-string (- end start)) text :start2 start :end2 end))))

(defun decode-escapes (text start end keep-slashes plus)
  "TEXT from START to END, decoded octet by octet, as by DECODE-TEXT."
  (let ((octets (percent-octets text start end :keep-slashes keep-slashes :plus plus)))
    (handler-case (if octets (octets-string octets) (refuse-text text start end))
      (invalid-utf8 () (refuse-text text start end)))))

(defun decode-text (text start end &key keep-slashes plus)
  "TEXT from START to END with its escapes decoded, except escapes of a slash if KEEP-SLASHES is
true; if PLUS is true, a plus sign becomes a space. Signal REQUEST-ERROR for an invalid escape, and
if the octets are not UTF-8."
  (declare (type simple-string text))
  (if (plain-text-p text start end plus)
      (part-of text start end)
      (decode-escapes text start end keep-slashes plus)))
