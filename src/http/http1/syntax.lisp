;;;; The octets that are valid in each part of a message (RFC 9110 section 5.6, RFC 9112 section 3).

(in-package #:clgrpc.http1)

(defconstant +tab+ 9)
(defconstant +lf+ 10)
(defconstant +cr+ 13)
(defconstant +space+ 32)
(defconstant +colon+ 58)

(deftype octet-set ()
  "A set of octets. It is a bit vector whose element N is 1 if the octet N is in the set."
  '(simple-bit-vector 256))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun octet-set (predicate)
    "The octet set of the octets whose characters satisfy PREDICATE."
    (let ((set (make-array 256 :element-type 'bit :initial-element 0)))
      (dotimes (octet 256 set)
        (when (funcall predicate (code-char octet)) (setf (sbit set octet) 1)))))

  (defun token-char-p (character)
    (or (char<= #\0 character #\9)
        (char<= #\a character #\z)
        (char<= #\A character #\Z)
        (find character "!#$%&'*+-.^_`|~")))

  (defun target-char-p (character)
    "True if CHARACTER is visible ASCII, except for characters that are not allowed in URIs and that
other programs have misread."
    (and (char<= #\! character #\~)
         (not (find character "\"<>\\^`{|}#"))))

  (defun value-char-p (character)
    (or (find character '(#\Space #\Tab))
        (char<= #\! character #\~)
        (char<= (code-char #x80) character))))

(sb-ext:defglobal **token-octets** (octet-set #'token-char-p))
(sb-ext:defglobal **target-octets** (octet-set #'target-char-p))
(sb-ext:defglobal **value-octets** (octet-set #'value-char-p))
(declaim (type octet-set **token-octets** **target-octets** **value-octets**))

(defun host-char-p (character)
  (or (char<= #\0 character #\9)
      (char<= #\a character #\z)
      (char<= #\A character #\Z)
      (find character "-._~!$&'()*+;=:[]%")))

(define-hot span ((octets octets) (start index) (end index) (set octet-set)) index
  "Return the position of the first octet from START to END that is not in SET, or END if all are in
SET."
  (loop for i of-type index from start below end
        while (= 1 (sbit set (aref octets i)))
        finally (return i)))

(defun token-p (text)
  "True if TEXT is a token of HTTP (RFC 9110, section 5.6.2)."
  (and (plusp (length text)) (every #'token-char-p text)))

(define-hot header-name-p ((name (simple-array character (*)))) boolean
  "True if NAME can be the name of a field, and is in lower case."
  (and (plusp (length name))
       (loop for character across name
             for code = (char-code character)
             always (and (< code 128)
                         (= 1 (sbit **token-octets** code))
                         (not (char<= #\A character #\Z))))))

(define-hot (blank-p :inline t) ((octet octet)) boolean
  (or (= +space+ octet) (= +tab+ octet)))

(define-hot decimal ((octets octets) (start index) (end index)) (or null index)
  "Return the number that the octets from START to END, one to fifteen digits, represent, or nil if
they have another form."
  (and (< start end)
       (<= (- end start) 14)            ; so that the number is an INDEX
       (let ((number 0))
         (declare (type index number))
         (loop for i of-type index from start below end
               for digit = (- (aref octets i) 48)
               do (unless (<= 0 digit 9) (return-from decimal nil))
                  (setf number (+ (* 10 number) digit)))
         number)))

(defun octets-text (octets start end)
  "Return the octets from START to END as a string, with one character for each octet."
  (let ((text (make-string (- end start))))
    (loop for i from start below end
          for at from 0
          do (setf (char text at) (code-char (aref octets i))))
    text))

(define-hot lower-case-octets ((octets octets) (start index) (end index)) octets
  "Return a copy of the octets from START to END, with capital letters replaced by small letters."
  (let ((copy (subseq-octets octets start end)))
    (dotimes (i (length copy) copy)
      (when (<= 65 (aref copy i) 90) (incf (aref copy i) 32)))))
