;;;; The tokens of .proto source (protobuf language specification, "Lexical elements"): identifiers,
;;;; integers, floats, strings, symbols, each with line and column (from 1; a tab advances to the
;;;; next multiple of eight, as protoc counts). Comments are kept: a token has the comment block
;;;; that ends on the line before it (LEADING) and the one that begins on its own line after it
;;;; (TRAILING).
;;;;
;;;; The whole file becomes one vector of tokens that ends with a token of kind :END. Errors are
;;;; noted and lexing continues, so that the parser can report its errors as well.

(in-package #:clgrpc.protobuf)

(defstruct (token (:copier nil))
  "A token of a .proto source."
  (kind :end :type (member :identifier :integer :float :string :symbol :end)) ; the token's kind
  ;; the value: for an identifier or symbol a string, for a number a number, for a string octets
  (value nil)
  (radix 10 :type (member 8 10 16))     ; the radix of an integer
  (line 1 :type index)                  ; the line where the token begins, from 1
  (column 1 :type index)                ; the column where the token begins, from 1
  (leading nil :type (or null string))  ; the comment that ends on the line before the token, or nil
  (trailing nil :type (or null string))) ; the comment after the token on its line, or nil

(defun describe-token (token)
  "A short description of TOKEN for messages."
  (case (token-kind token)
    (:end "the end of the file")
    (:string "a string")
    (t (format nil "\"~A\"" (token-value token)))))

(defstruct (lexer (:copier nil))
  "The state of tokenizing."
  (text "" :type (simple-array character (*))) ; the source
  (file "" :type string)                ; the file's name, for errors
  (at 0 :type index)                    ; the index of the next character
  (line 1 :type index)                  ; the line of the next character, from 1
  (column 1 :type index)                ; the column of the next character, from 1
  (name-end 0 :type index)              ; the end of the last identifier
  (problems '() :type list))            ; the errors so far, the latest first

(defun lexer-complain (lexer control &rest arguments)
  "Note an error at the position of LEXER."
  (push (make-condition 'proto-syntax-error
                        :file (lexer-file lexer) :line (lexer-line lexer)
                        :column (lexer-column lexer) :text (format nil "~?" control arguments))
        (lexer-problems lexer)))

(defun peek (lexer &optional (offset 0))
  (let ((at (+ (lexer-at lexer) offset)))
    (if (< at (length (lexer-text lexer))) (schar (lexer-text lexer) at) nil)))

(defun advance (lexer)
  "Consume one character of LEXER and return it, or return nil at the end."
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

(defun control-p (char)
  "True if CHAR is a control character that is not white space."
  (and (< (char-code char) 32)
       (not (member char '(#\Tab #\Newline #\Return #\Page #\Vt)))))

(defun take-while (lexer predicate)
  "Consume characters while PREDICATE returns true for them; return these characters as a string."
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
              do (when (and (eql #\/ (peek lexer)) (eql #\* (peek lexer 1)))
                   (lexer-complain lexer "comments do not nest"))
                 (unless (advance lexer)
                   (lexer-complain lexer "this comment has no end")
                   (return-from lex-comment "")))
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
  "True if the line after the present line of LEXER has a // comment in the same column region."
  (let* ((text (lexer-text lexer))
         (at (lexer-at lexer)))
    (and (eql #\Newline (peek lexer))
         (let ((next (position-if-not (lambda (char) (member char '(#\Space #\Tab))) text
                                      :start (1+ at))))
           (and next
                (< (1+ next) (length text))
                (char= #\/ (schar text next) (schar text (1+ next))))))))

(defun skip-blank (lexer previous)
  "Skip space and comments before a token. PREVIOUS is the previous token, which may get a trailing
comment. Return the leading comment of the next token, or nil if it has none."
  (let ((leading nil) (leading-end 0))
    (loop
      (let ((char (peek lexer)))
        (cond ((null char) (return))
              ((member char '(#\Space #\Tab #\Newline #\Return #\Page #\Vt)) (advance lexer))
              ((control-p char)
               (lexer-complain lexer "a control character stands here")
               (loop while (and (peek lexer) (control-p (peek lexer))) do (advance lexer)))
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
  "Consume one comment after a token; a // comment extends only to the end of its line."
  (if (eql #\/ (peek lexer 1))
      (progn (advance lexer) (advance lexer)
             (comment-lines (take-while lexer (lambda (char) (char/= char #\Newline)))))
      (lex-comment lexer)))

;;; Numbers

(defun lex-number (lexer)
  "Consume a number. Return the number's kind, value and radix."
  (multiple-value-prog1
      (cond ((and (eql #\0 (peek lexer)) (member (peek lexer 1) '(#\x #\X)))
             (lex-hexadecimal lexer))
            ((and (eql #\0 (peek lexer)) (digit-p (peek lexer 1))) (lex-octal lexer))
            (t (lex-decimal lexer)))
    (cond ((letter-p (peek lexer))
           (lexer-complain lexer "a space is needed between a number and a name"))
          ((eql #\. (peek lexer))
           (lexer-complain lexer "a number has at most one point, and none with a radix")))))

(defun lex-hexadecimal (lexer)
  (advance lexer)
  (advance lexer)
  (let ((digits (take-while lexer (lambda (char) (digit-p char 16)))))
    (when (string= digits "") (lexer-complain lexer "\"0x\" must be followed by digits"))
    (values :integer (digits-integer digits 16) 16)))

(defun lex-octal (lexer)
  (let ((digits (take-while lexer (lambda (char) (digit-p char 8)))))
    (when (digit-p (peek lexer))
      (lexer-complain lexer "a number that begins with 0 is octal")
      (take-while lexer #'digit-p))
    (values :integer (digits-integer digits 8) 8)))

(defun lex-decimal (lexer)
  (let ((start (lexer-at lexer)) (float-p nil))
    (take-while lexer #'digit-p)
    (when (eql #\. (peek lexer))
      (setf float-p t)
      (advance lexer)
      (take-while lexer #'digit-p))
    (let ((end (lexer-at lexer)))
      (when (member (peek lexer) '(#\e #\E))
        (setf float-p t)
        (advance lexer)
        (when (member (peek lexer) '(#\+ #\-)) (advance lexer))
        (if (string= "" (take-while lexer #'digit-p))
            (lexer-complain lexer "\"e\" must be followed by an exponent")
            (setf end (lexer-at lexer))))
      (let ((text (subseq (lexer-text lexer) start end)))
        (if float-p
            (values :float (decimal-double text) 10)
            (values :integer (digits-integer text 10) 10))))))

(defun digits-integer (digits radix)
  "Return the integer written in DIGITS. If there are so many digits that the exact value does not
matter, return some huge integer."
  (let ((start (or (position #\0 digits :test-not #'char=) (length digits))))
    (cond ((= start (length digits)) 0)
          ((> (- (length digits) start) 1000) (expt radix 1000))
          (t (parse-integer digits :start start :radix radix)))))

(defun text-exponent (text start)
  "Return the exponent that TEXT has at START. The exponent may have a sign."
  (let ((sign (char text start)))
    (* (if (char= sign #\-) -1 1)
       (digits-integer (subseq text (if (digit-p sign) start (1+ start))) 10))))

(defconstant +most-digits+ 800
  "The maximum number of digits of a number that are examined one by one. The longest number that
must be exact, the midpoint of two doubles, has 768 digits. Of further digits, it only matters
whether all are 0.")

(defun leading-digits (digits)
  "Return two values: the integer of the first digits of DIGITS, a string, and the number of these
digits. If further digits follow that are not all 0, the last digit of the integer becomes 1."
  (let ((end (min +most-digits+ (length digits))))
    (if (find #\0 digits :start end :test-not #'char=)
        (values (1+ (* 10 (parse-integer digits :end end))) (1+ end))
        (values (parse-integer digits :end end) end))))

(defun decimal-double (text)
  "The double nearest to the decimal TEXT, or infinity; TEXT has an integer part, then optionally a
point with digits and an exponent."
  (let* ((e (position-if (lambda (char) (member char '(#\e #\E))) text))
         (exponent (if e (text-exponent text (1+ e)) 0))
         (mantissa (subseq text 0 e))
         (dot (or (position #\. mantissa) (length mantissa)))
         (all-digits (remove #\. mantissa))
         (start (position #\0 all-digits :test-not #'char=)))
    (if (null start)
        0d0
        (multiple-value-bind (digits count) (leading-digits (subseq all-digits start))
          (or (digits-double digits (- (+ exponent dot) start count) nil)
              sb-ext:double-float-positive-infinity)))))

;;; Strings

(defun lex-string (lexer)
  "Consume a quoted string. Return the octets of the string: its characters as UTF-8, and the octets
that escapes represent."
  (let ((quote (advance lexer))
        (octets (make-array 16 :element-type 'octet :adjustable t :fill-pointer 0)))
    (flet ((put-character (char)
             (loop for octet across (string-octets (string char))
                   do (vector-push-extend octet octets))))
      (loop
        (let ((char (peek lexer)))
          (cond ((or (null char) (char= char #\Newline))
                 (lexer-complain lexer "this string has no closing quote")
                 (return (coerce octets 'octets)))
                ((char= char quote) (advance lexer) (return (coerce octets 'octets)))
                ((char= char #\\)
                 (advance lexer)
                 (let ((value (lex-escape lexer)))
                   (if (characterp value)
                       (put-character value)
                       (vector-push-extend value octets))))
                (t (put-character (advance lexer)))))))))

;; protoc reads \x1 to \xff, \1 to \777 (its low octet), \uXXXX and \UXXXXXXXX
(defun lex-escape (lexer)
  "Consume the part of an escape after the backslash; return an octet or a character."
  (let ((char (advance lexer)))
    (flet ((digits (radix least most)
             (let ((text (with-output-to-string (out)
                           (loop repeat most
                                 while (digit-p (peek lexer) radix)
                                 do (write-char (advance lexer) out)))))
               (if (< (length text) least)
                   (progn (lexer-complain lexer "an escape has too few digits") 0)
                   (parse-integer text :radix radix)))))
      (case char
        (#\a 7) (#\b 8) (#\t 9) (#\n 10) (#\v 11) (#\f 12) (#\r 13)
        ((#\\ #\' #\" #\?) (char-code char))
        ((#\x #\X) (digits 16 1 2))
        (#\u (escaped-character lexer (join-surrogates lexer (digits 16 4 4))))
        (#\U (escaped-character lexer (digits 16 8 8)))
        ((#\0 #\1 #\2 #\3 #\4 #\5 #\6 #\7)
         (decf (lexer-at lexer))
         (decf (lexer-column lexer))
         (logand 255 (digits 8 1 3)))
        (t (lexer-complain lexer "an unknown escape in a string") 0)))))

(defun join-surrogates (lexer code)
  "Return CODE; or the code of the pair, if CODE is the first of two surrogates and the second
follows."
  (let* ((text (lexer-text lexer))
         (at (lexer-at lexer))
         (second (and (<= #xD800 code #xDBFF)
                      (<= (+ at 6) (length text))
                      (string= "\\u" text :start2 at :end2 (+ at 2))
                      (parse-integer text :start (+ at 2) :end (+ at 6) :radix 16
                                          :junk-allowed t))))
    (cond ((and second (<= #xDC00 second #xDFFF))
           (loop repeat 6 do (advance lexer))
           (+ #x10000 (ash (- code #xD800) 10) (- second #xDC00)))
          (t code))))

(defun escaped-character (lexer code)
  (cond ((or (> code #x10FFFF) (<= #xD800 code #xDFFF))
         (lexer-complain lexer "an escape names no Unicode character")
         (code-char #xFFFD))
        (t (code-char code))))

;;; The whole

(defun lex-name (lexer)
  (prog1 (take-while lexer (lambda (char) (or (letter-p char) (digit-p char))))
    (setf (lexer-name-end lexer) (lexer-at lexer))))

(defun lex-symbol (lexer)
  "Consume one character that is not part of a longer token; the parser decides whether it is
valid."
  (unless (< (char-code (peek lexer)) 128)
    (lexer-complain lexer "the character ~S is allowed in strings and comments only" (peek lexer)))
  (string (advance lexer)))

(defun next-token (lexer previous)
  (let* ((leading (skip-blank lexer previous))
         (line (lexer-line lexer))
         (column (lexer-column lexer))
         (char (peek lexer)))
    (multiple-value-bind (kind value radix)
        (cond ((null char) :end)
              ((letter-p char) (values :identifier (lex-name lexer)))
              ((or (digit-p char) (and (char= char #\.) (digit-p (peek lexer 1))))
               (when (and (char= char #\.) (= (lexer-at lexer) (lexer-name-end lexer)))
                 (lexer-complain lexer "a space is needed between a name and a point"))
               (lex-number lexer))
              ((member char '(#\" #\')) (values :string (lex-string lexer)))
              (t (values :symbol (lex-symbol lexer))))
      (make-token :kind kind :value value :radix (or radix 10) :line line :column column
                  :leading leading))))

(defun tokenize (text file)
  "Return the vector of tokens of TEXT, the source of FILE, and the PROTO-SYNTAX-ERRORs in it."
  (let ((lexer (make-lexer :text (coerce text '(simple-array character (*))) :file file))
        (tokens (make-array 256 :adjustable t :fill-pointer 0))
        (previous nil))
    (when (eql (peek lexer) (code-char #xFEFF)) (incf (lexer-at lexer)))
    (loop
      (setf previous (next-token lexer previous))
      (vector-push-extend previous tokens)
      (when (eq :end (token-kind previous)) (return)))
    (values (coerce tokens 'simple-vector) (reverse (lexer-problems lexer)))))
