;;;; Path templates (http.proto, "Path template syntax"):
;;;;
;;;;   Template  = "/" Segments [ Verb ]          Variable  = "{" FieldPath [ "=" Segments ] "}"
;;;;   Segments  = Segment { "/" Segment }        FieldPath = IDENT { "." IDENT }
;;;;   Segment   = "*" | "**" | LITERAL | Variable    Verb  = ":" LITERAL
;;;;
;;;; A template is parsed into its segments, without variables, since segments decide which paths
;;;; match, and into its variables, each with a range of segments. After "**" only the end of its
;;;; variable and the verb may follow. A literal has the characters that a segment of a path may
;;;; have (RFC 3986), without "*" and ":"; other characters are percent-encoded, and the literal
;;;; matches the path after decoding.

(in-package #:clgrpc.rest)

(defconstant +longest-template+ 4096
  "The maximum number of characters of a template.")

(defconstant +most-segments+ 100
  "The maximum number of segments of a template. It is limited because matching recurs once for each
segment.")

(defstruct (path-variable (:conc-name variable-) (:constructor make-variable (path start end))
                          (:copier nil))
  "A variable of a template."
  (path "" :type string :read-only t)   ; the names of its fields, joined by points
  (start 0 :type index :read-only t)    ; the first of its segments
  (end 0 :type index :read-only t))     ; the segment after the last

(defstruct (template (:copier nil))
  "A path template."
  (text "" :type string :read-only t)   ; the template as written
  ;; each segment is a decoded literal, or :one for *, or, only as the last, :rest for **
  (segments #() :type simple-vector :read-only t)
  (variables '() :type list :read-only t) ; the variables in their order
  (verb nil :type (or null string) :read-only t)) ; the verb, decoded, or nil

(document-functions
  template-text "The path template TEMPLATE as it was written.")

(define-printer (template template)
  "~A" (template-text template))

(defstruct (scan (:constructor make-scan (text)) (:copier nil))
  "A template that is being read."
  (text "" :type simple-string)         ; all of it
  (at 0 :type index)                    ; the index of the next character
  (segments '() :type list)             ; the segments read so far, the last first
  (count 0 :type index)                 ; the length of SEGMENTS
  (variables '() :type list))           ; the variables read so far, the last first

(defun peek (scan &optional (ahead 0))
  "The character of SCAN that follows AHEAD characters after the next; nil at the end."
  (let ((at (+ ahead (scan-at scan))))
    (and (< at (length (scan-text scan))) (schar (scan-text scan) at))))

(defun pass (scan char)
  "Skip CHAR if it comes next; return true if it was there."
  (when (eql char (peek scan))
    (incf (scan-at scan))
    t))

(defun wrong-at (scan control &rest arguments)
  "Signal that the template of SCAN is wrong at SCAN's position."
  (wrong-rule "~? at character ~D of its path" control arguments (1+ (scan-at scan))))

(defun literal-char-p (char)
  "True of the characters of a literal: the characters of a segment of a path except \"*\" and
\":\"."
  (and (< 32 (char-code char) 127)
       (or (alphanumericp char) (find char "-._~!$&'()+,;=@%"))))

(defun scan-literal (scan what &optional (stop ""))
  "Skip a literal and return it decoded; WHAT names it in errors. The literal ends at a character of
STOP."
  (let* ((start (scan-at scan)) (text (scan-text scan))
         (end (or (position-if (lambda (char) (or (not (literal-char-p char)) (find char stop)))
                               text :start start)
                  (length text))))
    (when (= start end)
      (if (member (peek scan) '(nil #\/ #\: #\}))
          (wrong-at scan "~A is empty" what)
          (wrong-at scan "~S is not allowed in ~A" (string (peek scan)) what)))
    (setf (scan-at scan) end)
    (handler-case (decode-text text start end)
      (request-error () (wrong-at scan "~A is not percent-encoded UTF-8" what)))))

(defun add-segment (scan segment)
  (when (eq :rest (first (scan-segments scan)))
    (wrong-rule "\"**\" is not the last segment of its path"))
  (when (> (incf (scan-count scan)) +most-segments+)
    (wrong-at scan "it has more than ~D segments" +most-segments+))
  (push segment (scan-segments scan)))

(defun scan-name (scan)
  "Pass over an identifier and return it."
  (let* ((start (scan-at scan)) (text (scan-text scan))
         (end (or (position-if-not (lambda (char)
                                     (and (< (char-code char) 128)
                                          (or (alphanumericp char) (char= char #\_))))
                                   text :start start)
                  (length text))))
    (when (or (= start end) (digit-char-p (char text start)))
      (wrong-at scan "the name of a field is expected"))
    (setf (scan-at scan) end)
    (subseq text start end)))

(defun scan-variable (scan)
  "Pass over a variable, whose brace has been passed."
  (let ((path (format nil "~A~{.~A~}" (scan-name scan)
                      (loop while (pass scan #\.) collect (scan-name scan))))
        (start (scan-count scan)))
    (if (pass scan #\=)
        (scan-segments-of scan t)
        (add-segment scan :one))
    (unless (pass scan #\})
      (wrong-at scan "the variable ~A is not closed; \"}\" is expected" path))
    (push (make-variable path start (scan-count scan)) (scan-variables scan))))

(defun scan-segment (scan inside)
  "Pass over a segment; INSIDE is true within a variable."
  (cond ((pass scan #\*)
         (add-segment scan (if (pass scan #\*) :rest :one)))
        ((pass scan #\{)
         (when inside (wrong-at scan "a variable is within another"))
         (scan-variable scan))
        (t (add-segment scan (scan-literal scan "a segment"))))
  (unless (member (peek scan) (if inside '(#\/ #\} nil) '(#\/ #\: nil)))
    (wrong-at scan "~S follows a segment" (string (peek scan)))))

(defun scan-segments-of (scan inside)
  "Pass over segments with slashes between them."
  (loop do (scan-segment scan inside)
        while (pass scan #\/)))

(defun parse-template (text)
  "Parse TEXT, a string, as a template. Signal RULE-ERROR if TEXT is not a template."
  (when (> (length text) +longest-template+)
    (wrong-rule "its path has more than ~D characters" +longest-template+))
  (let ((scan (make-scan (coerce text 'simple-string))))
    (when (string= "" text) (wrong-rule "it has no path"))
    (unless (pass scan #\/) (wrong-rule "its path does not begin with a slash"))
    (scan-segments-of scan nil)
    (let ((verb (and (pass scan #\:) (scan-literal scan "the verb"))))
      (when (peek scan)
        (wrong-at scan "~S follows the verb, which is the end of a path," (string (peek scan))))
      (make-template :text text :verb verb
                     :segments (coerce (reverse (scan-segments scan)) 'simple-vector)
                     :variables (reverse (scan-variables scan))))))

(defun variable-wide-p (template variable)
  "True if VARIABLE of TEMPLATE matches several segments, or any number."
  (or (/= 1 (- (variable-end variable) (variable-start variable)))
      (not (eq :one (svref (template-segments template) (variable-start variable))))))
