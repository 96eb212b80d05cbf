;;;; Percent-decoding (RFC 3986, section 2.1) of paths and queries. A text is decoded once, to
;;;; octets that must be UTF-8. In variables of several segments the escapes of a slash stay as they
;;;; are (http.proto, "Path template syntax"), in queries a plus sign is a space.

(in-package #:clgrpc.rest)

(deftype characters () "Text as these functions read it." '(simple-array character (*)))

(define-hot characters ((text string)) characters
  "TEXT, or a copy of it."
  (etypecase text
    (characters text)
    (simple-base-string
     (let ((copy (make-string (length text))))
       (dotimes (i (length text) copy) (setf (schar copy i) (schar text i)))))
    (string (coerce text 'characters))))

(define-hot char-position ((char character) (text characters) (start index) (end index)) index
  "Where CHAR is in TEXT from START to END; END if it is not there."
  (loop for i of-type index from start below end
        when (char= char (schar text i)) do (return i)
        finally (return end)))

(defun refuse-text (text start end)
  (refuse-request 400 :invalid-argument "~A is not percent-encoded UTF-8"
                  (printable-text (subseq text start end) :limit 100 :quoted t)))

(defun decode-escapes (text start end keep-slashes plus)
  "What TEXT from START to END says, octet by octet, as DECODE-TEXT has it."
  (declare (type characters text) (type index start end))
  (let ((octets (make-octets (- end start))) (fill 0) (at start))
    (declare (type index fill at))
    (flet ((put (octet)
             (unless (typep octet 'octet) (refuse-text text start end))
             (setf (aref octets fill) octet)
             (incf fill)))
      (declare (inline put))
      (loop while (< at end)
            do (let ((char (schar text at)))
                 (cond ((char= char #\%)
                        (let ((octet (exchange:percent-octet text at end)))
                          (if (and keep-slashes (eql octet 47))
                              (loop for i from at below (+ at 3)
                                    do (put (char-code (char text i))))
                              (put octet))
                          (incf at 3)))
                       (t (put (if (and plus (char= char #\+)) 32 (char-code char)))
                          (incf at))))))
    (handler-case (octets-string octets :end fill)
      (invalid-utf8 () (refuse-text text start end)))))

(defun decode-text (text start end &key keep-slashes plus)
  "TEXT from START to END with its escapes decoded, but for those of a slash with KEEP-SLASHES; with
PLUS a plus sign is a space. Signal REQUEST-ERROR if an escape is none or the octets are not UTF-8."
  (let ((text (characters text)))
    (declare (type characters text) (type index start end))
    (if (loop for i of-type index from start below end
              for char = (schar text i)
              thereis (or (char= char #\%) (and plus (char= char #\+)) (> (char-code char) 127)))
        (decode-escapes text start end keep-slashes plus)
        (subseq text start end))))
