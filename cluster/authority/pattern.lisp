;;;; Patterns of identities. A pattern is an identity in which * matches one label of a DNS name, or
;;;; one segment of the path of a SPIFFE identity; {name} matches the name of the member that the
;;;; peer claims to be.

(in-package #:clgrpc.authority)

(defstruct (pattern (:constructor %make-pattern (text spiffe-p parts)) (:copier nil))
  "A pattern of identities."
  (text "" :type string :read-only t)   ; the pattern as it was given
  (spiffe-p nil :type boolean :read-only t) ; true for a pattern of SPIFFE identities
  (parts '() :type list :read-only t))  ; strings, :SEGMENT and :NAME

(defparameter *name-place* "{name}" "The part of a pattern for the member's name.")

(defun pattern-separator (spiffe-p)
  (if spiffe-p #\/ #\.))

(defun whole-segment-p (text at spiffe-p)
  (let ((separator (pattern-separator spiffe-p)))
    (flet ((edge-p (place)
             (or (not (< -1 place (length text))) (char= separator (char text place)))))
      (and (edge-p (1- at)) (edge-p (1+ at))))))

(defun parse-parts (text spiffe-p)
  "The parts of TEXT, a pattern. Signal MISUSE."
  (loop with start = 0
        for star = (position #\* text :start start)
        for place = (search *name-place* text :start2 start)
        for next = (cond ((and star place) (min star place)) (t (or star place)))
        when (string/= "" (subseq text start next))
          collect (subseq text start next)
        while next
        if (eql next star)
          collect :segment
          and do (unless (whole-segment-p text next spiffe-p)
                   (misuse "In ~S the * must be a whole label or segment." text))
                 (setf start (1+ next))
        else
          collect :name
          and do (setf start (+ next (length *name-place*)))))

(defun make-pattern (text)
  "Parse TEXT as a pattern and return the pattern. Signal MISUSE."
  (let* ((spiffe-p (spiffe-p text))
         (domain-end (and spiffe-p (position #\/ text :start (length "spiffe://")))))
    (cond ((string= "" text) (misuse "A pattern of identities must not be empty."))
          ((and (not spiffe-p) (find #\/ text))
           (misuse "~S is neither a DNS name nor a SPIFFE identity, spiffe://DOMAIN/PATH." text))
          ((and spiffe-p
                (or (null domain-end)
                    (= domain-end (length "spiffe://"))
                    (find-if (lambda (char) (find char "*{")) text :end domain-end)))
           (misuse "~S needs a complete trust domain and a path." text)))
    (%make-pattern text (and spiffe-p t) (parse-parts text spiffe-p))))

(defun parts-match-p (parts separator text start name)
  "True if PARTS of a pattern match TEXT from START on; :NAME matches NAME."
  (if (null parts)
      (= start (length text))
      (let* ((part (first parts))
             (literal (if (eq :name part) name part))
             (end (if (eq :segment part)
                      (or (position separator text :start start) (length text))
                      (+ start (length literal)))))
        (and (< start end)
             (<= end (length text))
             (or (eq :segment part) (string= literal text :start2 start :end2 end))
             (parts-match-p (rest parts) separator text end name)))))

(defun matches-p (pattern identity name)
  "True if IDENTITY matches PATTERN. NAME, or nil, replaces {name} in the pattern."
  (let ((spiffe-p (spiffe-p identity)))
    (or (string= "*" (pattern-text pattern))
        (and (eq (and spiffe-p t) (pattern-spiffe-p pattern))
             (or (not (find :name (pattern-parts pattern)))
                 (and name (or (not spiffe-p) (segment-p name))))
             (parts-match-p (pattern-parts pattern) (pattern-separator spiffe-p) identity 0
                            name)))))
