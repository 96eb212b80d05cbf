;;;; Saving the image (SAVE-LISP-AND-DIE, or UIOP:DUMP-IMAGE): threads and descriptors cannot be in
;;;; a core. So an object with threads is registered with a function that ends it, and saving calls
;;;; these functions first. After that servers are :stopped and channels closed, in the saved core
;;;; as well; the program makes new servers and channels when the core has started. Two kinds of
;;;; thread remain: the thread of a loop that a user made, and the thread of a handler that does not
;;;; return. SBCL refuses to save an image with threads, and names them.
;;;;
;;;; The table is weak, so an object that becomes garbage disappears from it.

(in-package #:clgrpc.loop)

(defglobal **ended-before-save** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "A table from an object that must end before the image is saved to the function that ends it.")

(defun end-before-save (object function)
  "Register FUNCTION, which is called with OBJECT before the image is saved, unless FORGET-ENDING is
called before. From any thread."
  (setf (gethash object **ended-before-save**) function)
  nil)

(defun forget-ending (object)
  "Remove the function that END-BEFORE-SAVE registered for OBJECT, which has ended. From any
thread."
  (remhash object **ended-before-save**)
  nil)

(defun end-before-saving ()
  "Prepare for the saving of the image."
  (loop for (object . function) in (sb-ext:with-locked-hash-table (**ended-before-save**)
                                     (loop for object being the hash-keys of **ended-before-save**
                                             using (hash-value function)
                                           collect (cons object function)))
        do (log-event :info :ended-before-save :object object)
           (funcall (the function function) object)))

(pushnew 'end-before-saving sb-ext:*save-hooks*)
