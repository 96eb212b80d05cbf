;;;; Makes text that a peer may have written safe to show in a log, a report, a backtrace or on a
;;;; terminal. Nothing in a printed text may look like another line, move a cursor, change the order
;;;; of the text next to it or be longer than its limit. Code that shows such text uses
;;;; PRINTABLE-TEXT or WRITE-PRINTABLE; code that prints an object which contains such text uses
;;;; BOUNDED-TEXT.
;;;;
;;;; Invariant: the work and the memory are bounded by the limit, not by the length of the text.

(in-package #:clgrpc.base)

(defconstant +visible-characters+ 1000
  "The default of the maximum number of characters of a text that are shown.")

(define-hot (unsafe-code-p :inline t) ((code (unsigned-byte 21))) boolean
  "True if the character with the code CODE is not simply visible. These are controls (C0, DEL, C1),
line and paragraph separators, marks and overrides of direction, surrogates, and tags."
  (or (< code 32)
      (<= 127 code 159)
      (and (> code #x061B)
           (or (= code #x061C)
               (<= #x200E code #x200F) (<= #x2028 code #x202E) (<= #x2066 code #x2069)
               (<= #xD800 code #xDFFF)
               (<= #xFFF9 code #xFFFB)
               (<= #xE0000 code #xE007F)))))

(defun unsafe-char-p (char)
  "True if CHAR is not simply visible: a control character, a line separator, an override of
direction and so on."
  (unsafe-code-p (char-code char)))

(declaim (type (simple-vector 256) **octet-escapes**))
(sb-ext:defglobal **octet-escapes**
    (let ((escapes (make-array 256)))
      (dotimes (code 256 escapes)
        (setf (svref escapes code)
              (coerce (format nil "\\x~(~2,'0X~)" code) 'simple-base-string))))
  "The escape of each code under 256. The escapes are made in advance, because each octet from a
peer, as an index into HPACK's table, may cause a long text of such codes to be written.")

(defun write-code (code stream)
  "Write \\x1b or \\u{202e} for CODE."
  (if (< code 256)
      (write-string (svref **octet-escapes** code) stream)
      (format stream "\\u{~(~X~)}" code)))

(defun write-printable-char (char stream quoted)
  (let ((code (char-code char)))
    (cond ((char= char #\Newline) (write-string "\\n" stream))
          ((char= char #\Return) (write-string "\\r" stream))
          ((char= char #\Tab) (write-string "\\t" stream))
          ((unsafe-code-p code) (write-code code stream))
          ((and quoted (find char "\"\\")) (write-char #\\ stream) (write-char char stream))
          (t (write-char char stream)))))

(define-hot plain-until-p ((text simple-string) (end index) (quoted boolean)) boolean
  "True if WRITE-PRINTABLE writes the characters of TEXT up to END unchanged."
  (with-text-type (text)
    (loop for i of-type index from 0 below end
          for char = (schar text i)
          always (and (char<= #\Space char #\~)
                      (not (and quoted (or (char= char #\") (char= char #\\))))))))

(defun write-printable (text stream &key (limit +visible-characters+) quoted)
  "Write at most LIMIT characters of the string TEXT to STREAM, and … if TEXT has more. Invisible
characters are escaped: \\n, \\x1b, \\u{202e}. If QUOTED is true, the text is put between quotation
marks, and quotation marks in it get a backslash."
  (when quoted (write-char #\" stream))
  (let ((end (min limit (length text))))
    (if (and (simple-string-p text) (plain-until-p text end (and quoted t)))
        (write-string text stream :end end)
        (loop for i below end
              do (write-printable-char (char text i) stream quoted))))
  (when quoted (write-char #\" stream))
  (when (> (length text) limit) (write-string "…" stream))
  nil)

(defun printable-text (text &key (limit +visible-characters+) quoted)
  "Return the output of WRITE-PRINTABLE as a string, which the caller must not change."
  (if (and (not quoted) (simple-string-p text) (<= (length text) limit)
           (plain-until-p text (length text) nil))
      text
      (with-output-to-string (stream)
        (write-printable text stream :limit limit :quoted quoted))))

(defconstant +quoted-octets+ 32 "The maximum number of octets of a peer's data in a text.")

(defun quoted-octets (octets)
  "Return the beginning of OCTETS, which a peer has sent, as ISO 8859-1, for a text to print or to
send."
  (printable-text (map 'string #'code-char
                       (subseq octets 0 (min (1+ +quoted-octets+) (length octets))))
                  :limit +quoted-octets+ :quoted t))

;;; Printing within bounds

(defclass bounded-stream (sb-gray:fundamental-character-output-stream)
  ((target :initarg :target :reader bounded-stream-target) ; the stream to write to
   (room :initarg :room :accessor bounded-stream-room) ; characters that may still be written
   ;; a function that is called when no more characters fit
   (leave :initarg :leave :reader bounded-stream-leave))
  (:documentation "An output stream for a limited number of characters."))

(defmethod sb-gray:stream-write-char ((stream bounded-stream) char)
  (when (minusp (decf (bounded-stream-room stream))) (funcall (bounded-stream-leave stream)))
  (write-char char (bounded-stream-target stream)))

(defmethod sb-gray:stream-write-string ((stream bounded-stream) string &optional (start 0) end)
  (let* ((end (or end (length string)))
         (fits (min end (+ start (bounded-stream-room stream)))))
    (write-string string (bounded-stream-target stream) :start start :end fits)
    (decf (bounded-stream-room stream) (- fits start))
    (when (< fits end) (funcall (bounded-stream-leave stream)))
    string))

(defmethod sb-gray:stream-line-column ((stream bounded-stream))
  nil)

(defun call-with-bounded-text (limit function)
  (let ((cut t))
    (values (with-output-to-string (target)
              (block nil
                (funcall function
                         (make-instance 'bounded-stream :target target :room limit
                                                        :leave (lambda () (return))))
                (setf cut nil)))
            cut)))

(defmacro with-bounded-text ((stream limit) &body body)
  "Return the output of BODY to STREAM, as a string of at most LIMIT characters. If BODY writes
more, it ends at once, and the second value is true."
  (let ((function (gensym "BODY")))
    `(flet ((,function (,stream) ,@body))
       (declare (dynamic-extent #',function))
       (call-with-bounded-text ,limit #',function))))

(defun bounded-text (object &key (limit +visible-characters+) escape)
  "Return the text that PRINC, or with ESCAPE PRIN1, prints for OBJECT: at most LIMIT characters,
then … if there are more. The result is always a string. It may contain invisible characters, so use
WRITE-PRINTABLE to show it."
  (or (with-log-guard ()
        (multiple-value-bind (text cut)
            (if (and (stringp object) (not escape))
                (values (subseq object 0 (min limit (length object))) (> (length object) limit))
                (with-bounded-text (stream limit)
                  (let ((*print-pretty* nil) (*print-readably* nil) (*print-circle* nil)
                        (*print-length* (min 100 (or *print-length* 100)))
                        (*print-level* (min 8 (or *print-level* 8))))
                    (if escape (prin1 object stream) (princ object stream)))))
          (if cut (concatenate 'string text "…") text)))
      "(cannot be printed)"))
