;;;; Domain names (RFC 1035 sections 2.3.4, 3.1 and 4.1.4). Here a name is the octets that represent
;;;; it in a message: labels of 1 to 63 octets, each preceded by its length, and 0 at the end. It
;;;; has at most 255 octets, with letters in lower case, and no compression. Two names are the same
;;;; if their octets are the same (RFC 4343).
;;;;
;;;; In a message the end of a name may be a pointer to earlier octets. Each pointer must lead to a
;;;; place before all octets of the name that were read so far, so reading a name terminates. The
;;;; number of pointers of a name is limited: otherwise a server could make each name of a message
;;;; lead through the same 8,000 pointers.

(in-package #:clgrpc.dns)

(define-condition malformed-message (clgrpc-error)
  ((text :initarg :text :reader malformed-message-text) ; the fault
   ;; an index into the message's octets
   (position :initarg :position :reader malformed-message-position))
  (:report (lambda (condition stream)
             (format stream "Bad DNS message at octet ~D: ~A."
                     (malformed-message-position condition) (malformed-message-text condition))))
  (:documentation "The octets are not a DNS message."))

(document-functions
  malformed-message-text "The fault of the message, as text."
  malformed-message-position "The place of the fault: an index into the octets given to
PARSE-MESSAGE.")

(declaim (ftype (function (index string &rest t) nil) bad-message))
(defun bad-message (position control &rest arguments)
  (error 'malformed-message :position position :text (format nil "~?" control arguments)))

(defconstant +longest-name+ 255
  "The maximum length of a name in octets (RFC 1035 section 2.3.4).")
(defconstant +longest-label+ 63
  "The maximum length of a label in octets (RFC 1035 section 2.3.4).")

(defconstant +most-pointers+ 127
  "The maximum number of pointers in a name. A name cannot have more labels than this.")

(defun name-octets (text)
  "The name for TEXT, such as \"example.org\" or \"example.org.\". Signal MISUSE if TEXT is not a
name: each label must have 1 to 63 characters of ASCII, without spaces."
  (let ((name (make-buffer :size (+ 2 (length text))))
        ;; a dot at the end precedes the root, whose label is empty
        (end (if (uiop:string-suffix-p text ".") (1- (length text)) (length text))))
    (dolist (label (or (uiop:split-string (subseq text 0 end) :separator ".") '("")))
      (unless (and (<= 1 (length label) +longest-label+)
                   (every (lambda (char) (char< #\Space char #\Rubout)) label))
        (misuse "~S is not a domain name: a label has 1 to ~D characters of ASCII, not ~S." text
                +longest-label+ label))
      (append-octet name (length label))
      (append-octets name (string-octets (string-downcase label))))
    (append-octet name 0)
    (when (< +longest-name+ (buffer-fill name))
      (misuse "~S is too long for a domain name." text))
    (subseq (buffer-octets name) (buffer-start name) (buffer-end name))))

(defun name-text (name)
  "Return NAME as text for people. Octets outside ASCII, and spaces and dots within a label, are
escaped."
  (declare (type octets name))
  (with-output-to-string (text)
    (loop with at = 0
          for length = (aref name at)
          until (zerop length)
          do (unless (zerop at) (write-char #\. text))
             (loop for octet across (subseq name (1+ at) (+ 1 at length))
                   do (if (and (< 32 octet 127) (/= octet 46))
                          (write-char (code-char octet) text)
                          (format text "\\~3,'0D" octet)))
             (incf at (1+ length)))))

(defun read-name (octets start end)
  "Return two values: the name that begins at START in OCTETS, a message that ends at END, and the
position after the name. Signal MALFORMED-MESSAGE if START is not the beginning of a name."
  (declare (type octets octets) (type index start end))
  (let ((name (make-octets +longest-name+))
        (fill 0)
        (at start)
        (lowest start)                  ; the beginning of the part that is being read
        (pointers 0)                    ; how many pointers were followed
        (after nil))                    ; the end of the name, once a pointer was followed
    (declare (type index fill at lowest pointers))
    (flet ((octet (at)
             (if (< at end) (aref octets at) (bad-message at "it ends within a name"))))
      (loop
        (let ((length (octet at)))
          (cond ((zerop length)
                 (return (values (subseq name 0 (1+ fill)) (or after (1+ at)))))
                ((<= length +longest-label+)
                 (when (< +longest-name+ (+ fill 2 length))
                   (bad-message at "a name has more than ~D octets" +longest-name+))
                 (setf (aref name fill) length)
                 (loop for i from 1 to length
                       for octet = (octet (+ at i))
                       do (setf (aref name (+ fill i))
                                (if (<= 65 octet 90) (+ octet 32) octet)))
                 (incf fill (1+ length))
                 (incf at (1+ length)))
                ((<= #xC0 length)
                 (let ((target (logior (ash (logand length #x3F) 8) (octet (1+ at)))))
                   (unless (< target lowest)
                     (bad-message at "a pointer does not point to an earlier place"))
                   (when (< +most-pointers+ (incf pointers))
                     (bad-message at "a name has more than ~D pointers" +most-pointers+))
                   (unless after (setf after (+ at 2)))
                   (setf at target
                         lowest target)))
                (t (bad-message at "a label is of an unknown kind"))))))))
