;;;; Saving the image (SAVE-LISP-AND-DIE, or UIOP:DUMP-IMAGE): what has threads and descriptors
;;;; cannot be in a core, so whoever has them registers a function that ends it, and saving calls
;;;; that first. A server is :stopped then and a channel closed, in the saved core as well; new ones
;;;; are made when the core has started. A loop that its user made, or a handler that does not end,
;;;; is not ended: SBCL refuses to save an image with threads, and names them.
;;;;
;;;; The table is weak: who forgets an object need not say so here.

(in-package #:clgrpc.loop)

(defglobal **mortals** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "What is to end before the image is saved, with a function of it that ends it.")

(defun end-before-save (object function)
  "Have FUNCTION called with OBJECT before the image is saved, unless FORGET-ENDING is called
before. From any thread."
  (setf (gethash object **mortals**) function)
  nil)

(defun forget-ending (object)
  "OBJECT has ended. From any thread."
  (remhash object **mortals**)
  nil)

(defun end-mortals ()
  "The image is about to be saved."
  (loop for (object . function) in (loop for object being the hash-keys of **mortals**
                                           using (hash-value function)
                                         collect (cons object function))
        do (log-event :info :ended-before-save :object object)
           (funcall (the function function) object)))

(pushnew 'end-mortals sb-ext:*save-hooks*)
