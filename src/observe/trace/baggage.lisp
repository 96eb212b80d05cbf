;;;; The header baggage (W3C Baggage): names and values of the user's that go with calls from
;;;; process to process, whether their trace is recorded or not.
;;;;
;;;;   user=7,tier=gold;source=login
;;;;
;;;; A context has the text as it goes on. The properties of a member, after a semicolon, go on as
;;;; they are and are not shown to the user. A text is cut between members where it would be longer
;;;; than +MOST-BAGGAGE-OCTETS+ or have more than +MOST-BAGGAGE-MEMBERS+, the least that the
;;;; recommendation asks to pass on; a malformed member is left out.

(in-package #:clgrpc.trace)

(defconstant +most-baggage-members+ 64
  "How many members of a baggage go on.")
(defconstant +most-baggage-octets+ 8192
  "How long a baggage goes on.")

(defun baggage-name-p (name)
  "True if NAME is a token (RFC 9110, section 5.6.2)."
  (and (string/= "" name)
       (every (lambda (char) (or (and (alphanumericp char) (char< char (code-char 128)))
                                 (find char "!#$%&'*+-.^_`|~")))
              name)))

(defun baggage-char-p (char)
  "True if CHAR may stand in a value as it is."
  (and (char< #\Space char (code-char 127))
       (not (find char "\",;\\"))))

(defun trimmed (text)
  (string-trim '(#\Space #\Tab) text))

(defun member-name (member)
  "The name of MEMBER, a text; nil if it is not one."
  (let* ((semicolon (position #\; member))
         (equals (position #\= member :end semicolon))
         (name (and equals (trimmed (subseq member 0 equals)))))
    (and name
         (baggage-name-p name)
         (every #'baggage-char-p (trimmed (subseq member (1+ equals) semicolon)))
         (every (lambda (char) (char<= #\Space char #\~)) member)
         name)))

(defun member-value (member)
  "The value of MEMBER, decoded; nil if it is not UTF-8."
  (percent-decoded-text (trimmed (subseq member (1+ (position #\= member))
                                         (position #\; member)))))

(defun baggage-members (text)
  "The members of TEXT that are as they should be."
  (loop with start = 0
        for comma = (position #\, text :start start)
        for member = (trimmed (subseq text start comma))
        when (member-name member) collect member
        while comma
        do (setf start (1+ comma))))

(defun joined-members (members)
  "MEMBERS as a baggage, without those at the end that are too much."
  (let ((text (make-string-output-stream)) (octets 0))
    (loop for member in members
          repeat +most-baggage-members+
          do (incf octets (+ (length member) (if (zerop octets) 0 1)))
             (when (< +most-baggage-octets+ octets) (return))
             (unless (= octets (length member)) (write-char #\, text))
             (write-string member text))
    (coerce (get-output-stream-string text) 'simple-string)))

(defun read-baggage (texts)
  "The baggage in TEXTS, the values of headers baggage. Octets beyond the limit of what goes on are
not looked at."
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

(defun baggage-alist (text)
  "The names and values of TEXT, a baggage."
  (loop for member in (baggage-members text)
        for value = (member-value member)
        when value collect (cons (member-name member) value)))

(defun escaped-value (value)
  "VALUE, a string, as a member has it: octets of UTF-8 that may not stand there are escaped."
  (with-output-to-string (stream)
    (loop for octet across (string-octets value)
          for char = (code-char octet)
          do (if (and (baggage-char-p char) (char/= char #\%))
                 (write-char char stream)
                 (format stream "%~2,'0X" octet)))))

(defun baggage-with (text name value)
  "TEXT, a baggage, in which NAME has VALUE, a string; nothing if that is nil."
  (joined-members
   (append (and value
                (list (format nil "~A=~A" name (escaped-value value))))
           (remove name (baggage-members text) :key #'member-name :test #'string=))))
