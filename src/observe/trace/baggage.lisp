;;;; The header baggage (W3C Baggage): names and values of the user's that accompany calls from
;;;; process to process, whether their trace is recorded or not.
;;;;
;;;;   user=7,tier=gold;source=login
;;;;
;;;; A context has the text in the form in which it is passed on. The properties of a member, after
;;;; a semicolon, are passed on unchanged and are not shown to the user. A text is truncated between
;;;; members if it would be longer than +MOST-BAGGAGE-OCTETS+ or have more than
;;;; +MOST-BAGGAGE-MEMBERS+, the least limits that the recommendation permits; a malformed member is
;;;; omitted. Of a baggage in several headers only +MOST-JOINED-OCTETS+ are passed on: by HPACK a
;;;; request of a few octets can make us join these headers, and make handlers read them.

(in-package #:clgrpc.trace)

(defconstant +most-baggage-members+ 64
  "The maximum number of members of a baggage that are passed on.")
(defconstant +most-baggage-octets+ 8192
  "The maximum number of octets of a baggage that are passed on.")
(defconstant +most-joined-octets+ 4096
  "The maximum number of octets that are passed on of a baggage in several headers.")

(defun baggage-name-p (name)
  "True if NAME is a token (RFC 9110, section 5.6.2)."
  (and (string/= "" name)
       (every (lambda (char) (or (and (alphanumericp char) (char< char (code-char 128)))
                                 (find char "!#$%&'*+-.^_`|~")))
              name)))

(defun check-baggage-entry (name value)
  "Signal MISUSE unless NAME and VALUE may be a member of a baggage."
  (unless (and (stringp name) (baggage-name-p name))
    (misuse "A name in a baggage is a token of ASCII, not ~S." name))
  (unless (typep value '(or null string))
    (misuse "The value of ~A in a baggage is a string, or nil to leave it out, not ~S."
            name value)))

(defun baggage-char-p (char)
  "True if CHAR is allowed in a value without escaping."
  (and (char< #\Space char (code-char 127))
       (not (find char "\",;\\"))))

(defun trimmed (text)
  (string-trim '(#\Space #\Tab) text))

(defun member-name (member)
  "The name of MEMBER, a text; nil if MEMBER is malformed."
  (let* ((semicolon (position #\; member))
         (equals (position #\= member :end semicolon))
         (name (and equals (trimmed (subseq member 0 equals)))))
    (and name
         (baggage-name-p name)
         (every #'baggage-char-p (trimmed (subseq member (1+ equals) semicolon)))
         (every (lambda (char) (char<= #\Space char #\~)) member)
         name)))

(defun baggage-members (text)
  "The well-formed members of TEXT."
  (loop with start = 0
        for comma = (position #\, text :start start)
        for member = (trimmed (subseq text start comma))
        when (member-name member) collect member
        while comma
        do (setf start (1+ comma))))

(defun joined-members (members)
  "MEMBERS as a baggage, without the last ones if the limits are exceeded."
  (let ((text (make-string-output-stream)) (octets 0))
    (loop for member in members
          repeat +most-baggage-members+
          do (incf octets (+ (length member) (if (zerop octets) 0 1)))
             (when (< +most-baggage-octets+ octets) (return))
             (unless (= octets (length member)) (write-char #\, text))
             (write-string member text))
    (coerce (get-output-stream-string text) 'simple-string)))

(defun read-baggage (texts)
  "The baggage in TEXTS, the values of headers baggage. Octets beyond the limit are not examined."
  (joined-members
   (loop with room = +most-baggage-octets+
         for text in texts
         while (plusp room)
         append (let ((cut (and (< room (length text)) (position #\, text :end room :from-end t))))
                  (cond ((<= (length text) room)
                         (decf room (length text))
                         (baggage-members text))
                        (t (setf room 0)
                           (and cut (baggage-members (subseq text 0 cut)))))))))

(define-hot trimmed-part ((text simple-string) (start index) (end index)) (values index index)
  "Two values: where TEXT from START to END begins and ends without the blanks around it."
  (with-text-type (text)
    (loop while (and (< start end) (space-or-tab-p (schar text start))) do (incf start))
    (loop while (and (< start end) (space-or-tab-p (schar text (1- end)))) do (decf end)))
  (values start end))

(define-hot text-part ((text simple-string) (start index) (end index)) simple-string
  "TEXT from START to END without the blanks around it."
  (multiple-value-bind (start end) (trimmed-part text start end)
    (subseq text start end)))

(defun map-members (function text)
  "Call FUNCTION with START, EQUALS and END of each member of TEXT, a baggage whose members are
valid."
  (loop with length = (length text)
        for start = 0 then (1+ end)
        while (< start length)
        for end = (or (char-position #\, text :start start) length)
        do (funcall function start (char-position #\= text :start start :end end) end)))

(defun member-value (text equals end)
  "The value, decoded, of the member of TEXT that ends at END; nil if it is not UTF-8."
  (let ((semicolon (char-position #\; text :start equals :end end)))
    (multiple-value-bind (start end) (trimmed-part text (1+ equals) (or semicolon end))
      (if (char-position #\% text :start start :end end)
          (when-let ((octets (percent-octets text start end)))
            (handler-case (octets-string octets)
              (invalid-utf8 () nil)))
          (subseq text start end)))))

(defun baggage-alist (text)
  "The names and values of TEXT, a baggage as READ-BAGGAGE returns it. Members are not checked
again: if handlers call this function, each request of a peer causes its work."
  (let ((alist '()))
    (map-members (lambda (start equals end)
                   (let ((value (member-value text equals end)))
                     (when value (push (cons (text-part text start equals) value) alist))))
                 text)
    (nreverse alist)))

(defun escaped-value (value)
  "VALUE, a string, in the form of a member: octets of UTF-8 that are not allowed there are
escaped."
  (with-output-to-string (stream)
    (loop for octet across (string-octets value)
          for char = (code-char octet)
          do (if (and (baggage-char-p char) (char/= char #\%))
                 (write-char char stream)
                 (format stream "%~2,'0X" octet)))))

(defun baggage-with (text name value)
  "TEXT, a baggage as READ-BAGGAGE returns it, in which NAME has VALUE, a string; without NAME if
VALUE is nil."
  (let ((members '()))
    (map-members (lambda (start equals end)
                   (unless (string= name (text-part text start equals))
                     (push (text-part text start end) members)))
                 text)
    (joined-members
     (append (and value
                  (list (format nil "~A=~A" name (escaped-value value))))
             (nreverse members)))))
