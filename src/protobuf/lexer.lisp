;;;; The tokens of .proto source (protobuf language specification, "Lexical elements"): identifiers,
;;;; integers, floats, strings, symbols, each with line and column (from 1; a tab advances to the
;;;; next multiple of eight, as protoc counts). Comments are kept: a token has the comment block
;;;; that ends on the line before it (LEADING) and the one that begins on its own line after it
;;;; (TRAILING).
;;;;
;;;; The whole file becomes one vector of tokens that ends with a token of kind :END.

(in-package #:clgrpc.protobuf)

(defstruct (token (:copier nil))
  (kind :end :type (member :identifier :integer :float :string :symbol :end))
  (value nil)
  (line 1 :type index)
  (column 1 :type index)
  (leading nil :type (or null string))
  (trailing nil :type (or null string)))

(defun describe-token (token)
  "Say in a few words what TOKEN is, for messages."
  (case (token-kind token)
    (:end "the end of the file")
    (:string "a string")
    (t (format nil "\"~A\"" (token-value token)))))

(defun syntax-error (file line column control &rest arguments)
  (error 'proto-syntax-error :file file :line line :column column
                             :text (format nil "~?" control arguments)))

(defstruct (lexer (:copier nil))
  (text "" :type simple-string)
  (file "" :type string)
  (at 0 :type index)
  (line 1 :type index)
  (column 1 :type index))

(defun lexer-fail (lexer control &rest arguments)
  (syntax-error (lexer-file lexer) (lexer-line lexer) (lexer-column lexer) "~?" control arguments))

(defun peek (lexer &optional (offset 0))
  (let ((at (+ (lexer-at lexer) offset)))
    (if (< at (length (lexer-text lexer))) (schar (lexer-text lexer) at) nil)))

(defun advance (lexer)
  "Consume one character of LEXER, return it or nil at the end."
  (let ((char (peek lexer)))
    (when char
      (incf (lexer-at lexer))
      (case char
        (#\Newline (incf (lexer-line lexer)) (setf (lexer-column lexer) 1))
        (#\Tab (setf (lexer-column lexer) (1+ (* 8 (ceiling (lexer-column lexer) 8)))))
        (t (incf (lexer-column lexer)))))
    char))

(defun letter-p (char)
  (and char (or (char<= #\a char #\z) (char<= #\A char #\Z) (char= char #\_))))

(defun digit-p (char &optional (radix 10))
  (and char (< (char-code char) 128) (digit-char-p char radix)))

(defun take-while (lexer predicate)
  "Consume characters while PREDICATE holds, return them as a string."
  (let ((start (lexer-at lexer)))
    (loop while (and (peek lexer) (funcall predicate (peek lexer))) do (advance lexer))
    (subseq (lexer-text lexer) start (lexer-at lexer))))

;;; Comments

(defun comment-lines (text)
  "Split TEXT at newlines, drop the decoration at the start of each line, and join again."
  (let ((lines (loop for start = 0 then (1+ end)
                     for end = (position #\Newline text :start start)
                     collect (string-right-trim '(#\Space #\Tab #\Return)
                                                (string-left-trim '(#\Space #\Tab #\*)
                                                                  (subseq text start end)))
                     while end)))
    (string-trim '(#\Newline #\Space) (format nil "~{~A~^~%~}" lines))))

(defun lex-comment (lexer)
  "Consume the comment at LEXER; a run of // lines counts as one. Return its text."
  (advance lexer)
  (if (eql #\* (advance lexer))
      (let ((start (lexer-at lexer)))
        (loop until (and (eql #\* (peek lexer)) (eql #\/ (peek lexer 1)))
              do (unless (advance lexer) (lexer-fail lexer "this comment has no end")))
        (advance lexer)
        (advance lexer)
        (comment-lines (subseq (lexer-text lexer) start (- (lexer-at lexer) 2))))
      (flet ((rest-of-line ()
               (string-trim "/" (take-while lexer (lambda (char) (char/= char #\Newline))))))
        (let ((lines (list (rest-of-line))))
          (loop while (next-line-comment-p lexer)
                do (loop until (eql #\/ (peek lexer)) do (advance lexer))
                   (advance lexer)
                   (advance lexer)
                   (push (rest-of-line) lines))
          (comment-lines (format nil "~{~A~^~%~}" (reverse lines)))))))

(defun next-line-comment-p (lexer)
  "True if the line after the one where LEXER stands holds a // comment in the same column region."
  (let* ((text (lexer-text lexer))
         (at (lexer-at lexer)))
    (and (eql #\Newline (peek lexer))
         (let ((next (position-if-not (lambda (char) (member char '(#\Space #\Tab))) text
                                      :start (1+ at))))
           (and next
                (< (1+ next) (length text))
                (char= #\/ (schar text next) (schar text (1+ next))))))))

(defun skip-blank (lexer previous)
  "Skip space and comments before a token. PREVIOUS is the token before, which may get a trailing
comment. Return the leading comment of the token to come, or nil."
  (let ((leading nil) (leading-end 0))
    (loop
      (let ((char (peek lexer)))
        (cond ((null char) (return))
              ((member char '(#\Space #\Tab #\Newline #\Return #\Page #\Vt)) (advance lexer))
              ((and (char= char #\/) (member (peek lexer 1) '(#\/ #\*)))
               (let* ((own-line (lexer-line lexer))
                      (beside (and previous (= own-line (token-line previous))))
                      (text (if beside (lex-line-comment lexer) (lex-comment lexer))))
                 (if beside
                     (setf (token-trailing previous) text)
                     (setf leading text leading-end (lexer-line lexer)))))
              (t (return)))))
    (and leading (<= (lexer-line lexer) (1+ leading-end)) (plusp (length leading)) leading)))

(defun lex-line-comment (lexer)
  "Consume one comment that stands behind a token: a // comment of that line only."
  (if (eql #\/ (peek lexer 1))
      (progn (advance lexer) (advance lexer)
             (comment-lines (take-while lexer (lambda (char) (char/= char #\Newline)))))
      (lex-comment lexer)))

;;; Numbers

(defun lex-number (lexer)
  "Consume a number. Return its kind and value."
  (let ((second (peek lexer 1)))
    (multiple-value-prog1
        (cond ((and (eql #\0 (peek lexer)) (member second '(#\x #\X)))
               (advance lexer)
               (advance lexer)
               (let ((digits (take-while lexer (lambda (char) (digit-p char 16)))))
                 (when (string= digits "") (lexer-fail lexer "\"0x\" must be followed by digits"))
                 (values :integer (parse-integer digits :radix 16))))
              (t (lex-decimal lexer)))
      (when (letter-p (peek lexer))
        (lexer-fail lexer "a space is needed between a number and a name")))))

(defun lex-decimal (lexer)
  (let ((start (lexer-at lexer)) (float-p nil))
    (take-while lexer #'digit-p)
    (when (eql #\. (peek lexer))
      (setf float-p t)
      (advance lexer)
      (take-while lexer #'digit-p))
    (when (member (peek lexer) '(#\e #\E))
      (setf float-p t)
      (advance lexer)
      (when (member (peek lexer) '(#\+ #\-)) (advance lexer))
      (when (string= "" (take-while lexer #'digit-p))
        (lexer-fail lexer "\"e\" must be followed by an exponent")))
    (let ((text (subseq (lexer-text lexer) start (lexer-at lexer))))
      (cond (float-p
             (when (member (peek lexer) '(#\f #\F)) (advance lexer))
             (values :float (decimal-double text)))
            ((and (> (length text) 1) (char= #\0 (char text 0)))
             (unless (every (lambda (char) (digit-p char 8)) text)
               (lexer-fail lexer "a number that begins with 0 is octal"))
             (values :integer (parse-integer text :radix 8)))
            (t (values :integer (parse-integer text)))))))

(defun decimal-double (text)
  "The double nearest to the decimal TEXT, or infinity; TEXT has an integer part, then optionally a
point with digits and an exponent."
  (let* ((e (position-if (lambda (char) (member char '(#\e #\E))) text))
         (exponent (if e (parse-integer text :start (1+ e)) 0))
         (mantissa (subseq text 0 e))
         (dot (position #\. mantissa))
         (digits (remove #\. mantissa))
         (scale (- exponent (if dot (- (length mantissa) dot 1) 0)))
         (value (if (string= digits "") 0 (parse-integer digits)))
         (magnitude (+ scale (length (string-left-trim "0" digits)))))
    (cond ((or (zerop value) (< magnitude -330)) 0d0)
          ((> magnitude 310) sb-ext:double-float-positive-infinity)
          (t (handler-case (coerce (* value (expt 10 scale)) 'double-float)
               (floating-point-overflow () sb-ext:double-float-positive-infinity)
               (floating-point-underflow () 0d0))))))

;;; Strings

(defun lex-string (lexer)
  "Consume a quoted string. Return its octets: characters as UTF-8, escapes as what they stand for."
  (let ((quote (advance lexer))
        (octets (make-array 16 :element-type 'octet :adjustable t :fill-pointer 0)))
    (flet ((put-character (char)
             (loop for octet across (string-octets (string char))
                   do (vector-push-extend octet octets))))
      (loop
        (let ((char (peek lexer)))
          (cond ((or (null char) (char= char #\Newline))
                 (lexer-fail lexer "this string has no closing quote"))
                ((char= char quote) (advance lexer) (return (coerce octets 'octets)))
                ((char= char #\\)
                 (advance lexer)
                 (let ((value (lex-escape lexer)))
                   (if (characterp value)
                       (put-character value)
                       (vector-push-extend value octets))))
                (t (put-character (advance lexer)))))))))

(defun lex-escape (lexer)
  "Consume the part of an escape after the backslash; return an octet or a character."
  (let ((char (advance lexer)))
    (flet ((digits (radix least most)
             (let ((text (with-output-to-string (out)
                           (loop repeat most
                                 while (digit-p (peek lexer) radix)
                                 do (write-char (advance lexer) out)))))
               (when (< (length text) least) (lexer-fail lexer "an escape has too few digits"))
               (parse-integer text :radix radix))))
      (case char
        (#\a 7) (#\b 8) (#\t 9) (#\n 10) (#\v 11) (#\f 12) (#\r 13)
        ((#\\ #\' #\" #\?) (char-code char))
        ((#\x #\X) (digits 16 1 2))
        (#\u (checked-character lexer (digits 16 4 4)))
        (#\U (checked-character lexer (digits 16 8 8)))
        ((#\0 #\1 #\2 #\3 #\4 #\5 #\6 #\7)
         (decf (lexer-at lexer))
         (decf (lexer-column lexer))
         (let ((value (digits 8 1 3)))
           (when (> value 255) (lexer-fail lexer "an octal escape is above 255"))
           value))
        (t (lexer-fail lexer "an unknown escape in a string"))))))

(defun checked-character (lexer code)
  (when (or (> code #x10FFFF) (<= #xD800 code #xDFFF))
    (lexer-fail lexer "an escape names no Unicode character"))
  (code-char code))

;;; The whole

(defun next-token (lexer previous)
  (let* ((leading (skip-blank lexer previous))
         (line (lexer-line lexer))
         (column (lexer-column lexer))
         (char (peek lexer)))
    (multiple-value-bind (kind value)
        (cond ((null char) :end)
              ((letter-p char)
               (values :identifier
                       (take-while lexer (lambda (char) (or (letter-p char) (digit-p char))))))
              ((or (digit-p char) (and (char= char #\.) (digit-p (peek lexer 1))))
               (lex-number lexer))
              ((member char '(#\" #\')) (values :string (lex-string lexer)))
              ((find char "{}[]()<>=;,.:-+/")
               (values :symbol (string (advance lexer))))
              (t (lexer-fail lexer "the character ~S means nothing here" char)))
      (make-token :kind kind :value value :line line :column column :leading leading))))

(defun tokenize (text file)
  "Return the vector of tokens of TEXT, the source of FILE. Signal PROTO-SYNTAX-ERROR."
  (let ((lexer (make-lexer :text (coerce text 'simple-string) :file file))
        (tokens (make-array 256 :adjustable t :fill-pointer 0))
        (previous nil))
    (when (eql (peek lexer) (code-char #xFEFF)) (incf (lexer-at lexer)))
    (loop
      (setf previous (next-token lexer previous))
      (vector-push-extend previous tokens)
      (when (eq :end (token-kind previous)) (return)))
    (coerce tokens 'simple-vector)))
