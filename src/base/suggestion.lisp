;;;; Finds the name that a misspelt name probably means, for messages such as "is it --listen?".

(in-package #:clgrpc.base)

(defun edit-distance (one other)
  "Return the number of characters that must be inserted, deleted or replaced to change the string
ONE into OTHER."
  (let ((row (loop for i from 0 to (length other) collect i)))
    (loop for char across one
          for above = row
          do (setf row (list (1+ (first above))))
             (loop for expected across other
                   for (corner over) on above
                   do (push (min (1+ (first row)) (1+ over)
                                 (+ corner (if (char= char expected) 0 1)))
                            row))
             (setf row (nreverse row)))
    (first (last row))))

(defun suggested-name (name names)
  "Return the element of NAMES, a list of strings, that the user probably meant by NAME, or nil if
none is near. It is the only element that begins with NAME, or the element that differs least from
NAME."
  (when (notany (lambda (known) (<= (length name) (* 2 (length known)))) names)
    (return-from suggested-name nil))   ; a peer may have sent a name of a megabyte
  (let ((begun (remove-if-not (lambda (known) (uiop:string-prefix-p name known)) names)))
    (if (and begun (null (rest begun)) (< 3 (length name)))
        (first begun)
        (let ((nearest (first (sort (copy-list names) #'<
                                    :key (lambda (known) (edit-distance name known))))))
          (and nearest
               (<= 4 (length name))
               (<= (edit-distance name nearest)
                   (min (max 2 (floor (length name) 4))
                        (floor (length nearest) 2))) ; a user who writes "kind" does not mean "id"
               nearest)))))

(defun check-choice (argument value choices)
  "Signal MISUSE unless VALUE, the value of the keyword ARGUMENT, is one of CHOICES, a list of
keywords. The error's text names the choice that was probably meant."
  (unless (member value choices)
    (let ((likely (and (symbolp value)
                       (suggested-name (string-downcase value)
                                       (mapcar #'string-downcase choices)))))
      (misuse "~S is ~{~(~S~)~#[~; or ~:;, ~]~}, not ~S~@[ (is it :~A?)~]." argument choices
              value likely))))
